"""`trisweep init`: a folder of one's own clusters, models and sweeps.

command     the command: what is asked, what is written, what to do next
machine     what is known of the machine, from Slurm or as an example
files       the texts of the files
"""
