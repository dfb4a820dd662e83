"""The search: every legal plan of a model on devices, priced on paper, and what to choose among them. No torch.

Read in this order:

request      from overrides to the spaces that are searched: usual batch and precision, memory left free
space        the values of each knob, given those before it, padding; `spreads` of layers over stages; `runnable` plans
blocks       all plans of one number of devices, as columns that numpy broadcasts; `shard_work` is priced once for all
search       one space whole: what fits, the fastest, and the best of each family
promising    many spaces at once: bounds tell which families need not be priced
choice       among spaces: which cluster, how many devices, which plan; `objectives` are money, energy, device-hours
strategy     one plan as a value; `neighbours` differ from it in one knob, `explain` says why it is as fast as it is
points       what a sweep then measures
scaling      the best plan for every number of devices
mixed        one job over several types of devices

A family is all plans of the same `space.Sizes` on one number of devices of one cluster. A knob of a plan lives in one
of four places: `space.Sizes`, `space.ShardChoice` (what a layer's price depends on) or `spreads.StageLayout`, all three
columns of `Plans`, or `space.Placing`, which is part of the `Setting`.
"""

from sweeps.planner.choice import Candidate, Choice, choose, pareto_front
from sweeps.planner.objectives import OBJECTIVES, Objective, Training
from sweeps.planner.search import Found, search_space
from sweeps.planner.space import Space
from sweeps.planner.strategy import Strategy

__all__ = [
    "OBJECTIVES",
    "Candidate",
    "Choice",
    "Found",
    "Objective",
    "Space",
    "Strategy",
    "Training",
    "choose",
    "pareto_front",
    "search_space",
]
