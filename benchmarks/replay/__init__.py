"""Searches replayed on made-up machines: the cost model with other constants, unmodelled effects and noise. No torch.

The result is a replay, not a measurement: it shows how a search behaves, never how fast a cluster is.
`python -m benchmarks.replay SWEEP` replays a sweep; `python -m benchmarks search_jobs` counts jobs on plans of models.

machine     a made-up machine: what it really needs for a step, in seconds and bytes
foreign_machine  one that errs knob by knob, whatever the structure of the cost model
run         one experiment on it, as the measurement that a trial would leave, and the trial read with it
sites       every legal plan of a model as candidates
published   the rows of a published table as candidates, on the machine that they were measured on
players     candidates on a machine, and a search of sweeps, chance and Optuna's TPE, each until it is near the best
knobs       plans of a site as values of knobs, and DeepHyper's search, which chooses knob by knob
contest     the points of a sweep as candidates, and its players side by side, over several machines
"""
