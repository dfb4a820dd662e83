"""Which points to run: trials, grids and the choice of what is worth measuring, and how a trial stands.

plan         `plan_sweep`: from a composition to the record of a sweep
trial        `Trial`, `SweepRecord`, and the folder that keeps them
sweep        `Sweep`: folder and record together
reading      how a trial stands, read once from its folder
submission   which job works in a folder
planner      the search for the best plan on paper
table        tables of configurations to price
"""
