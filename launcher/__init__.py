"""Jobs: the trials of a sweep and long trainings are started, watched and ended, on this machine or through Slurm.

From the top down; every line imports only from those below it:

job               the functions that run inside a job: named by whoever submits it, and not imported
allocation_sweep  a sweep in one allocation, whose trials are its steps, and the job that runs inside it
rerun             one trial again, as it was
doctor            whether a site is ready, and what to change; the look at a job's nodes before its training
sweep             `submit`, `run_here` and `dry_run`: a sweep carried out
controller        the small Slurm job that goes on with a sweep
workplaces        where trials run: this machine, Slurm's queue, steps of an allocation
control           one step of a sweep, and what it goes by: rules, budget, retries, orders
state             what Slurm and this machine add to what the folders say
cancel            ending what is queued or running
trainings         long trainings: begun from a sweep's best plan, found again, run as one Slurm job
allocation        one allocation of Slurm: its nodes, who shares them, its steps
machine           what this machine can hold at once, and its jobs, whose processes can be ended
where             Slurm or this machine, and in which folder
slurm             most of what talks to Slurm, and all that writes what Slurm reads
command_trainer   trials whose trainer is another program

Under all of them lie `executor` (the functions that jobs call, and the folders that they work in), `provenance` (the
code as it was, and where numbers come from), `folder_lock`, `refused` (what puts a refused command's writing back), and
`tools` (Slurm's and other people's programs, run for their answer, and the forms in which they write it).
"""
