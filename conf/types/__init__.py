"""Types of what the groups of YAML files hold: names, units and invariants of single values.

schema         how a model is laid out, trained, saved and watched
recompute      the table of recomputation modes: what each repeats
model_spec     facts about models; `cluster_spec` about machines, `sites` about Slurm and tracking
sbatch_options the options of sbatch and srun by all of their names, and which are free
durations      limits of time as sbatch takes them
sweep_spec     a sweep's question and points; `axes` are its lists and ranges, `expression` computes over keys
stage_spec     what follows the trials of a sweep, and where an experiment stands in its chain
trainer_spec   which program trains
"""
