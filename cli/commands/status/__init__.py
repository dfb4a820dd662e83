"""`trisweep status`: how every trial stands.

command     the command, and which job carries the sweep out
table       a line per trial, and what the journal says of who goes on with the sweep; loaded when the command runs
watch       the same, drawn again every few seconds
"""
