"""`trisweep sweep`: plan, measure and report.

command           the command, and a sweep on this machine
on_slurm          through Slurm's queue; `allocation` in one allocation of it
costs             what a dry run says of money and time
what_is_measured  what is measured and what is left out
end               how the command ends
"""
