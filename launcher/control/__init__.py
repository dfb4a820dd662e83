"""The control of a sweep: it decides what is done next, wherever the trials run.

conductor  one step: see how trials stand, write down what is new, end what is not worth it, start more
loop       step after step, until the sweep has ended or a signal comes
workplace  the interfaces of the places where trials run, and of what shows how they stand
rules      what a sweep is carried out by, its budget and what that admits among it, and what a step found and did
composed_rules     from the configuration to the rules
attempts   attempts of trials: what the journal lacks, how often a trial is run again, which nodes are bad, and why a
           sweep stops although trials are left
orders     what people tell a sweep that is under way; secrets of a command, for whoever goes on with its sweep
notify     tells a command of the user's what came of a sweep

What happened is in the journal, of which `sweeps.folder.journal` makes the course of every trial: read that module
first. A step that raises is tried again by `loop`, unless it is the first of a command and was refused.

The places themselves lie above this room: `launcher.local`, `launcher.slurm` and `launcher.allocation` have a
`workplace` each. Where squeue does not answer, `launcher.slurm.reconcile` concludes nothing, and
`launcher.slurm.executor` writes the name of a job down before `sbatch` is called, so that no job is lost with the
process that submitted it.
"""
