"""Which point is best: what the runs of a point say together, their places, and which deserve a further run.

disturbed       runs that count and the one that stands for its point
intervals       how far a value may lie from the true one, and the places that follow
equal_training  which losses have no place beside others, as they are of another training
points          each point with its interval, ranked by what the sweep seeks
rounds          further runs, and when they are enough
"""
