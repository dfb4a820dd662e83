"""This machine, where trials run without Slurm: its capacity, its jobs, and how their processes are ended."""
