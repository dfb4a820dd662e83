"""Jobs: the trials of a sweep and long trainings are started, watched and ended, on this machine or through Slurm.

From the top down; every line imports only from those below it:

job               the functions that run inside a job: named by whoever submits it, and not imported
rerun             one trial again, as it was
doctor            whether a site is ready, and what to change; the look at a job's nodes before its training
allocation        a sweep in one allocation of Slurm, whose trials are its steps
sweep             `submit`, `run_here` and `dry_run`: a sweep carried out
cancel            ending what is queued or running
long_run          long trainings: begun from a sweep's best plan, found again, run as one Slurm job
where             Slurm or this machine, and in which folder
slurm             Slurm as the place where trials run, what it says of jobs, and all that writes what it reads
command_trainer   trials whose trainer is another program
local             this machine as the place where trials run: what it can hold at once, and its jobs
control           one step of a sweep, and what it goes by: rules, budget, retries, orders; it knows no Slurm

Under all of them lie `refused` (what puts a refused command's writing back), `job_payload` (the functions that jobs
call, and the folders that they work in), `provenance` (the code as it was, and where numbers come from), `folder_lock`,
`submitit_internals` (what submitit does not promise), and `external_commands` (Slurm's and other people's programs, run
for their answer, and the forms in which they write).
"""
