"""`trisweep calibrate`: measure a cluster or refine its constants, and say what the file says now.

command    its options; `work`: what each of them has done
"""
