"""Which point is best: what the runs of a point say together, their places, and which deserve a further run.

disturbed       runs that count and the one that stands for its point
points          each point with its interval, which is made of few runs, and its place
by_objective    the same where something else than the rate is sought
equal_training  which losses have no place beside others, as they are of another training
rounds          further runs, and when they are enough
"""
