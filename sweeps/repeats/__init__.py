"""The same point measured more than once: what its runs say together, and which points deserve a further run.

ranking         runs that count and the one that stands for its point; points in their order
points          each point with its interval, which is made of few runs
by_objective    the same where something else than the rate is sought
equal_training  which losses have no place beside others, as they are of another training
rounds          further runs, and when they are enough
"""
