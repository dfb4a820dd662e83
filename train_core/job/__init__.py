"""Running a trial folder: its ranks as processes, supervised on one machine or started by srun.

trial        `run_trial_here` and `run_trial_as_rank`; no torch before a rank starts
supervisor   starts the ranks of this machine, watches them, ends them, and a rank's life under it; no torch before that
training_folder which folder a training works in, and when it extends an earlier one; no torch
rank         one rank, from its seat to its share of the measurement; imports torch
failures     why a rank ended, from its words or its signal, and which of several is the culprit; no torch
"""
