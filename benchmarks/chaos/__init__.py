"""`make chaos`: what can go wrong on a cluster, done to real sweeps on the Slurm test cluster.

scenario       what a scenario is, and the bench on which it takes place
catalogue      all of them
judge          what became of a sweep, by its files and by what its programs wrote down, with no code of the package
aftermath      what a repetition found, in numbers
workbench      a sweep whose jobs count their executions, carried on by the functions of the commands
person         a sweep of a program that prints steps, carried on by commands of the command line alone
job_on_node    those jobs: the real job of a trial, in which only the training is made up
controller     a process that carries a sweep on, to be killed
cluster        the test cluster: its daemons killed and started again
repetition     one repetition of a scenario, in a process of its own
page           the runs at one commit, and docs/reliability.md
harm_to_jobs   scenarios: ranks killed, elements cancelled, requeued, suspended, preempted, limits met
harm_to_slurm  scenarios: daemons killed, nodes lost, accounting gone, answers lost
harm_to_controllers  scenarios: the job that goes on with a sweep killed, requeued, out of time, without its node
harm_to_files  scenarios: full and read-only disks, damaged files
harm_to_us     scenarios: controllers killed, two at once, clocks that are wrong, hundreds of points
harm_to_disks  scenarios: no room, or no inodes, in the last second of trials and for commands
harm_to_folders  scenarios: folders copied, moved, linked elsewhere, deleted in part
harm_to_commands  scenarios: commands killed at random instants
harm_by_planting  scenarios: code put where a queued job may take it for its own
harm_by_refusals  scenarios: refused commands between others
harm_by_shell  scenarios: variables of the user's shell, jobs renamed, tools that fail or say more
harm_to_allocations  scenarios: allocations that lose a node, their time, their controller, or slurmctld
"""
