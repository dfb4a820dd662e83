"""A module for every `trisweep COMMAND`, by the command's name.

A command that needs more than a module is a room: it has its `command`, and what only that needs. A few names differ:
`init` is in `own_folder`, `list` in `list_options`, and `resume` in `pause`.
"""
