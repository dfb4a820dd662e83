"""`make chaos`: what can go wrong on a cluster, done to real sweeps on the Slurm test cluster.

scenario       what a scenario is, and what it found
workbench      a sweep whose jobs count their executions, carried on as a person or the controller would
job_on_node    those jobs: the real job of a trial, in which only the training is made up
controller     a process that carries a sweep on, to be killed
cluster        the test cluster: its daemons killed and started again
harm_to_jobs   scenarios: ranks killed, elements cancelled, requeued, suspended, preempted, limits met
harm_to_slurm  scenarios: daemons killed, nodes lost, accounting gone, answers lost
harm_to_controllers  scenarios: the job that goes on with a sweep killed, requeued, out of time, without its node
harm_to_files  scenarios: full and read-only disks, damaged files
harm_to_us     scenarios: controllers killed, two at once, clocks that are wrong, a thousand points
harm_to_allocations  scenarios: allocations that lose a node, their time, their controller, or slurmctld
"""
