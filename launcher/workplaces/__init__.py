"""The places where trials run, behind one interface (`launcher.control.workplace`).

here           this machine: as many at once as do not disturb each other
queue          Slurm's queue, through `submission`: one job array per shape of jobs
in_allocation  steps of one allocation
elsewhere      a place seen from outside, where somebody else starts trials
"""
