"""Measured rates, finished trials or measured rows become the numbers of a cluster's file.

calibration      `choose_calibration`, `measure`, and the `Draft` of a file that comes of it
rates_job        the job that measures, here or in Slurm; `measured_changes`: what its rates mean for the file
measured_runs    the sweep whose trials say something about a cluster, or the rows of a table that do
refit_cluster    constants that suit finished trials better, and which five runs would say most
robust_fit       the fit: robust, and held by how well each constant is known
cluster_file     the file, rewritten where values change, every other character left alone
"""
