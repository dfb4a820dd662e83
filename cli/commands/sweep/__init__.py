"""`trisweep sweep`: plan, measure and report.

command           the command; `run` is its work, and a sweep on this machine
on_slurm          through Slurm's queue, or in one allocation of it
what_is_measured  what is measured and what is left out, and what a dry run says of money and time
sweep_run         one sweep as a command carries it out, and how the command ends
"""
