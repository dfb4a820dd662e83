"""Jobs: the trials of a sweep and long trainings are started, watched and ended, on this machine or through Slurm."""
