"""The search of any axes: learning rates, batches, depths, and not only layouts.

axis_search    which points come next; `draws` and `tpe` choose their values, `more_seeds` who deserves another seed
seen_points    the points so far, with their trials; `objectives` what each is worth, `best_points` which are best
step_pruning   which running trials end early
"""
