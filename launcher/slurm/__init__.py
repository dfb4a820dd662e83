"""Most of what talks to Slurm, and all that writes what Slurm reads. `doctor`, `cancel` and `where` ask it too.

controller   the small job that goes on with a sweep
workplace    the queue as the place where trials run: one job array per shape; on paper, and seen from outside
reconcile    what Slurm and this machine add to what the folders say
query        how jobs stand; `query_cache` keeps what Slurm said a moment ago
executor     hands a function and its folders to sbatch; `task` is what srun starts
sbatch       from the configuration to sbatch's parameters, and to the container in which a job's Python runs
printed      the file for sbatch of a command that people start by hand
shell        what a person's SBATCH_ and SLURM_ variables change of a job, and what not
resources    what a job asks of the cluster, and which trials share a job array
cluster      which Slurm cluster this is, what it offers, and what the site says of itself
job_status   how jobs of ours stand, this process's own among them, which carries a sweep out; their cancellation
own_words    what Slurm writes into a job's output, and which end it tells of
verdict      why a job ended without a measurement
pbs_executor hands trials and controllers to the qsub of a PBS machine; `pbs` tells how they stand there
job_records  what the accounting says, kept
"""
