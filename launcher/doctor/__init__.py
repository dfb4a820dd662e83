"""The examination of a site by `trisweep doctor`: is it ready, and what is to be changed? Nothing is printed here.

examination   all of it, part after part: this machine itself, and what the nodes told, held against it and the
              cluster's file
slurm_checks  the site held against the settings under `slurm`
tiny_job      a job on two nodes, which measures what no login node knows
node_report   what each of its ranks tells, and what came of anything that was looked at
in_job        how a rank finds that out, before and with torch

Beside it lies `preflight`, the look that every rank of a trial's job takes at its node before the training.
"""
