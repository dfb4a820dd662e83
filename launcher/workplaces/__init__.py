"""The places where trials run, behind one interface (`launcher.control.workplace`).

here           this machine: as many at once as do not disturb each other
queue          Slurm's queue: one job array per shape of jobs; on paper, and seen from outside
in_allocation  steps of one allocation
"""
