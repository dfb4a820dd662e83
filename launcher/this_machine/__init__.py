"""This machine, where trials run without Slurm: its capacity, and its jobs, whose processes it can end."""
