"""Most of what talks to Slurm, and all that writes what Slurm reads. `doctor`, `cancel` and `where` ask it too.

controller   the small job that goes on with a sweep
workplace    the queue as the place where trials run: one job array per shape, and what each asks of the cluster; on
             paper, and seen from outside
reconcile    what Slurm and this machine add to what the folders say
query        how jobs stand, and what Slurm said of them a moment ago
executor     hands a function and its folders to sbatch; `task` is what srun starts
sbatch       from the configuration to sbatch's parameters and text, and to the container in which a job's Python runs;
             the file for sbatch of a command that people start by hand
shell        what a person's SBATCH_ and SLURM_ variables change of a job, and what not
cluster      which Slurm cluster this is, what it offers, and what the site says of itself
job_status   how jobs of ours stand, this process's own among them, which carries a sweep out; their cancellation
verdict      why a job ended without a measurement, by Slurm's words in its output among others
pbs          hands trials and controllers to the qsub of a PBS machine, tells how they stand there, and ends them
job_records  what the accounting says, kept
"""
