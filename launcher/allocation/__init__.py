"""One allocation of Slurm that runs the trials of a sweep as its steps.

nodes         which nodes it has, with what, and for how long
packing       which trials share it at once, on which nodes and devices
step          the `srun` that starts one trial; `running_step` sees it end
times         how long a trial is expected to take
ends          why a trial ended that wrote no measurement
folder        where a sweep notes which job is its allocation
"""
