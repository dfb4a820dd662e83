"""The real trainer's step, rehearsed at full size without devices: fake tensors, and ranks that do not exist."""
