"""The output of commands: tables, JSON, and the progress of a sweep.

console         the one console, which prints names and paths as they are
ends            how trials have ended, in words, and what runs each kind again
progress        a sweep on this machine while it runs: a live table, or a line for each event
state_table     how trials stand, as a table that fits the terminal
state_document  how a sweep stands, as JSON
trial_log       the log of a trial: all that is there, or all that comes until it ends
next_command    commands that are printed to be copied
"""
