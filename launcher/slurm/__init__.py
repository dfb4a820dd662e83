"""All that talks to Slurm, or writes what Slurm reads. What a trial is, is known elsewhere.

query        how jobs stand; `answers` keeps what Slurm said a moment ago, `tools` asks a tool once
executor     hands a function and its folders to sbatch; `task` is what srun starts
sbatch       from the configuration to sbatch's parameters; `hetjob` for several types of devices
container    the words before a job's Python where it runs in a container
resources    what a job asks of the cluster, and which trials share a job array
cluster      which Slurm cluster this is, and what it offers
own_jobs     how jobs of ours stand; `silent_jobs` why one ended without a measurement
job_records  what the accounting says, kept; `requeue` the job that this process runs in
node_names   Slurm's short form of names, and which ranks are where
"""
