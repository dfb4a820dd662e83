"""`trisweep status`: how every trial stands.

command          the command
table            a line per trial; `sweep_state` and `allocation_line` say who goes on with the sweep, and what keeps it
watch            the same, drawn again every few seconds
"""
