"""Which points of a sweep to run, and how each of them stands.

plan         `plan_sweep`: from a composition to the record of a sweep
axes         blocks of axes over a configuration: what depends on what, and every point of the grid
points       from axes and listed points to the values that set each trial apart
space_size   how large the space of the axes is, for people
token_budget how many steps a point trains where trials are compared at equal tokens
trial        `Trial`, `SweepRecord`, and the folder that keeps them
sweep        `Sweep`: folder and record together
journal      what was done with a sweep since it was planned; `history` is what its entries come to
reading      how a trial stands, read once from its folder
glance       whether anything may have changed since a sweep was read, without reading it
age          how long a trial has waited or run
submission   which job works in a folder
long_lived   values at which the garbage collector need not look
attempts     how the attempts before the last one ended
logs         where a job's own output is, and how it ends; `log_choice` says whose log a person wants
search       which point to try next, from what the trials have shown
replay       a made-up machine, on which a search can be tried without devices
planner      the search for the best plan on paper
table        tables of configurations to price
"""
