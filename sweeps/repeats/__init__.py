"""The same point measured more than once: what its runs say together, and which points deserve a further run."""
