"""One allocation of Slurm that runs the trials of a sweep as its steps.

nodes         which nodes it has, with what, and for how long; why a trial ended there that wrote no measurement
packing       which trials share it at once, on which nodes and devices, and for how long
step          the `srun` that starts one trial, and how that step ends
"""
