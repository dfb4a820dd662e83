"""From measured rates or finished trials to the numbers of a cluster's file.

calibration      `choose_calibration`, `measure`, and the `Draft` of a file that comes of it
rates_job        the job that measures, here or in Slurm
measured_sweep   the sweep whose trials say something about a cluster
refit_cluster    constants that suit finished trials better
cluster_file     the file, rewritten where values change and left alone elsewhere
"""
