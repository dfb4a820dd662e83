"""`trisweep calibrate`: measure a cluster or refine its constants, and say what the file says now."""
