"""One allocation of Slurm that runs the trials of a sweep as its steps.

sweep         the job of such an allocation, and a sweep carried out in the one that this process is in
workplace     the allocation as the place where trials run
nodes         which nodes it has, with what, and for how long; why a step ended that wrote no measurement
packing       which trials share it at once, on which nodes and devices, and for how long
step          the `srun` that starts one trial, and how that step ends
"""
