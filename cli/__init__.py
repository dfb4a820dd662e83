"""The command line: a module for every `trisweep COMMAND`, and all that parses arguments or prints to a terminal."""
