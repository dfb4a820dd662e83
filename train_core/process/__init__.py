"""A process of a job: its rank and device, the signals that stop it, and the code that it runs.

machine       which machine that is, and where the ranks of a Slurm job meet
world         `Seat` and `World`: joining through torchrun, srun or alone, and what one rank finds out for all, as a
              shared file system may show each node something else (imports torch)
gpu_settings  how GPUs compute: environment variables that are set where nothing is, those that a job must set, and
              kernels that repeat their bits
long_lived    values at which the garbage collector need not look; importing torch, which makes many of them
stop          signals that make a training save and stop
lock          one process at a time works in a folder
git_sha       which commit the running code is, and in which folder
"""
