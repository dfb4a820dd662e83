"""Sweeps replayed on a made-up machine: the cost model with other constants, unmodelled effects and noise. No torch.

What comes out is a replay, not a measurement: it shows how a search behaves, never how fast a cluster is.

machine    what a made-up machine really needs for a step, in seconds and bytes
reading    a trial with such a measurement, read as if it lay in a folder
run        one experiment on it, as the measurement that a trial would leave
study      every point of a sweep on it, and what the jobs of a search found
contest    the searches side by side, over several machines
players    the searches that are replayed on a study
"""
