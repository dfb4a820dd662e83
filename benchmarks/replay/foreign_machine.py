"""A made-up machine that errs knob by knob, whatever the structure of the cost model: its constants are as predicted.

No effect follows a term, a constant or a link, so that nothing in the cost model says how one plan's error tells of
another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log1p

import numpy as np

from benchmarks.replay.machine import InventedMachine, Truth
from costs.price import price
from costs.setting import Floats, Plans, Setting
from costs.terms import StepColumns

DOUBLINGS = {
    "tensor_parallel_size": 0.08,
    "pipeline_parallel_size": 0.06,
    "micro_batch_size": 0.06,
    "virtual_pipeline_size": 0.03,
    "context_parallel_size": 0.06,
    "expert_parallel_size": 0.06,
}
"""Spread of the error of each doubling of a size, as the standard deviation of its logarithm."""
KINDS = {"schedule": 0.05, "recompute": 0.07, "zero_stage": 0.05, "sequence_parallel": 0.04}
BEND = 0.5  # spread of the second difference of a size's error, over that of its first
INTERACTION = 0.05  # spread of what each pair of values of two sizes has of its own
CLIFF = 0.25  # the most that all steps are slower from some value of one size on
DISTURBED = 0.05  # share of runs that are slower by 10 to 50 %


@dataclass(frozen=True, slots=True)
class ForeignMachine(InventedMachine):
    """A machine whose errors grow with each knob, with an interaction, and on every second one with a cliff.

    Attributes:
        errors: factor on the spreads of all errors of seconds; noise and memory keep theirs.
    """

    memory: float = 0.07
    noise: float = 0.015
    errors: float = 1.0

    def truth(self, setting: Setting, plans: Plans) -> Truth:
        prices, reserved = price(setting, plans), setting.cluster.reserved_memory_bytes
        factor = np.exp(self.errors * (self._of_knobs(plans) + self._of_pair(plans) + self._of_cliff(plans)))
        terms = StepColumns(**{name: seconds * factor for name, seconds in prices.step.by_term().items()})
        held = (prices.peak_memory_bytes - reserved).astype(np.float64)
        return Truth(terms, prices.step_seconds * factor, reserved + held * np.exp(self._on_memory(plans)))

    def noise_of(self, name: str) -> float:
        """The factor by which the measurement of this name is off: with heavy tails, and now and then disturbed."""
        rng = self._rng(f"noise {name}")
        usual = self.noise * float(rng.standard_t(3))
        return exp(usual + (log1p(rng.uniform(0.1, 0.5)) if rng.uniform() < DISTURBED else 0.0))

    def _of_knobs(self, plans: Plans) -> Floats:
        error = np.zeros(len(plans))
        for name, spread in DOUBLINGS.items():
            doublings = np.log2(getattr(plans, name))
            error += self._draw(f"slope {name}", spread) * doublings
            # Each value bends away from the straight line by an amount of its own.
            error += self._by_value(f"bend {name}", getattr(plans, name), BEND * spread)
        for name, spread in KINDS.items():
            error += self._by_value(name, getattr(plans, name), spread)
        return error

    def _of_pair(self, plans: Plans) -> Floats:
        one, other = (getattr(plans, name) for name in self._sizes(2))
        return self._by_value("pair", one * 10_007 + other, INTERACTION)

    def _of_cliff(self, plans: Plans) -> Floats:
        (name,) = self._sizes(1)
        first = int(self._rng("cliff").choice([2, 4, 8]))
        height = log1p(CLIFF * self._share("height")) if self._share("has cliff") < 0.5 else 0.0
        return np.where(getattr(plans, name) >= first, height, 0.0)

    def _sizes(self, number: int) -> list[str]:
        return [str(name) for name in self._rng(f"sizes {number}").choice(list(DOUBLINGS), number, replace=False)]
