"""The search of any axes: learning rates, batches, depths, and not only layouts.

axis_search    which points come next; `draws` and `tpe` choose their values, `more_seeds` who deserves another seed
seen_points    the points so far, with their trials; `best_points` which are best by `sweeps.points.objectives`
step_pruning   which running trials end early
space_size     how large the space of the axes is, for people
"""
