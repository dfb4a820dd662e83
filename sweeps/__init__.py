"""Which points to run: trials, grids and the choice of what is worth measuring."""
