"""Long trainings, each of which is a folder and a job.

long_run  from a sweep to the long run of its best plan
slurm     that run as one Slurm job
begun     the trainings that were begun, as their folders tell
"""
