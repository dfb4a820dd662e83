"""The search of any axes: learning rates, batches, depths, and not only layouts.

axis_search    which points come next, and who deserves another seed; `draws` and `samplers` choose their values
seen_points    the points so far, with their trials, and which are best by `sweeps.points.objectives`
step_pruning   which running trials end early
"""
