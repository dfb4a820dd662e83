"""One training step, twice: computed on paper (`costs`, no torch) and run on devices (`train`)."""
