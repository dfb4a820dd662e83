"""The words typed after `trisweep`: arguments and options of several commands, their help, and their completion.

arguments         arguments that commands share, and their way into a configuration
started_sweep     the sweep that a command is about, once it was started
every_command     options that every command has
completion        what bash offers for an override
"""
