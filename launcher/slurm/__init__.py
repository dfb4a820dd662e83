"""All that talks to Slurm, or writes what Slurm reads. What a trial is, is known elsewhere.

query        how jobs stand; `answers` keeps what Slurm said a moment ago, `tools` asks a tool once
executor     hands a function and its folders to sbatch; `task` is what srun starts
sbatch       from the configuration to sbatch's parameters; `hetjob` for several types of devices
resources    what a job asks of the cluster; `arrays` and `submit_limits` say how many share an array
cluster      which Slurm cluster this is; `offer` says what it offers
own_jobs     how jobs of ours stand; `silent_jobs` why one ended without a measurement
job_records  what the accounting says, kept; `requeue` the job that this process runs in
node_names   Slurm's short form of names; `first_ranks` which ranks are where
"""
