"""The output of commands: tables, JSON, and the progress of a sweep.

console         the one console, which prints names and paths as they are
progress        a sweep on this machine while it runs: a live table, or a line for each event
state_table     how trials stand, as a table that fits the terminal
state_document  how a sweep stands, as JSON
next_command    commands that are printed to be copied
"""
