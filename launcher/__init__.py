"""Jobs: the trials of a sweep and long trainings are started, watched and ended, on this machine or through Slurm.

sweep              `submit`, `run_here` and `dry_run`: a sweep carried out
where              Slurm or this machine, and in which folder
state              `reconciled`: what Slurm and this machine add to what the folders say
slurm_watch        the same again and again, for somebody who watches, asking Slurm ever more rarely
cancel             ending what is queued or running
long_run           the training of a sweep's best plan; `trainings` finds those that were begun
advance            one step of a sweep; `loop` takes it again and again, `orders` are what people tell it meanwhile
notify             tells a webhook how a sweep stands
budget             what trials cost, and whether the sweep may still spend it
workplace          the interface of the places where trials run: start, watch and end
allocation_sweep   a sweep in one allocation, whose trials are its steps: `allocation_job` runs inside it, with
                   `allocation_workplace` as the workplace and `packing` to share the nodes out
executor           the interface of `slurm_executor` and `local_jobs`: a function, and folders for it to work in
by_name            the functions that jobs run, named and not imported
provenance         where a sweep's numbers come from: code, versions, modules, environment
job_records        what Slurm's accounting says of ended trials, kept beside them
tokens             the tokens of a sweep's trials, made before the first one starts
arrays             which trials share a job array
retries            which trials are run again, by what ended them, and on which nodes they are not to be run
slurm_answers      what Slurm said a moment ago, so that it is not asked more often than a site likes
submit_limits      how many jobs the site lets a user have in the queue
node_names         Slurm's short form for the names of nodes
command_trainer    trials whose trainer is another program (a room of its own)
doctor             whether a site is ready, and what to change (likewise)
capacity           what this machine can hold at once
"""
