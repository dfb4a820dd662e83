"""`trisweep calibrate`: from measured rates or finished trials to the numbers of a cluster file."""
