"""`trisweep sweep`: plan, measure and report.

command           the command; `run` is its work, and a sweep on this machine
on_slurm          through Slurm's queue, or in one allocation of it
sweep_run         one sweep as a command carries it out: what of it is measured, its money and time, and how it ends
"""
