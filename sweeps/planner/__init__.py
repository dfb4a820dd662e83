"""The search: every legal plan of a model on devices, priced on paper, and what to choose among them. No torch."""

from sweeps.planner.choice import Candidate, Choice, choose, pareto_front
from sweeps.planner.objectives import OBJECTIVES, Objective, Training
from sweeps.planner.search import search_space
from sweeps.planner.space import Space
from sweeps.planner.strategy import Strategy
from sweeps.planner.tally import Found

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
