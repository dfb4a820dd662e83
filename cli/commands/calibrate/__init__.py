"""`trisweep calibrate`: measure a cluster or refine its constants, and say what the file says now.

command    its options; `measure`: in one job; `refine`: from steps that were measured
"""
