"""What a rank waits for, how a step's time is made up, and what goes wrong in silence."""
