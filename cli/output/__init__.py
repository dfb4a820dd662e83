"""The output of commands: tables, JSON, and the progress of a sweep.

console         the one console, which prints names and paths as they are, and the bar of whoever waits
progress        a sweep on this machine while it runs: a live table, or a line for each event; how trials have ended
state_table     how trials stand, as a table that fits the terminal
status_table    what `status` shows: that table with what it says of some trials, once or every few seconds
trial_log       the log of a trial: all that is there, or all that comes until it ends
explained       what a dry run says below the texts for sbatch
training_preview  a long training on paper
next_command    commands that are printed to be copied
"""
