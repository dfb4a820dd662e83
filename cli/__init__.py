"""The command line: what parses arguments, and what prints answers to a terminal (jobs print into their own logs).

From the top down; every line imports only from those below it:

entry         the `trisweep` script
main          every command by its name, with the options of all, and one message for whatever goes wrong
controller    what the small Slurm job runs that goes on with a sweep
commands      a module for every `trisweep COMMAND`, or a room whose `command` it is
started_sweep the sweep that a command is about, once it was started, and its state as JSON
arguments     arguments that commands share, and their way into a configuration
output        what is printed: the one console, progress, tables, documents

Each command imports what only it needs when it runs, so that none waits for another's torch, mlflow or submitit. That
is why so many imports stand inside functions here.
"""
