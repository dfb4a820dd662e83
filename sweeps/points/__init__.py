"""The points of a sweep, and the trial that each of them is.

plan             `plan_sweep`: from a composition to the record of a sweep, every point priced, and on how many devices
axes             blocks of axes over a configuration: what depends on what, and every point of the grid
following        the trials of the stages that come after a trial
objectives       what each objective makes of a point's trial, and whether points can be compared by it
"""
