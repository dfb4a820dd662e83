"""How likely a plan is to fit, by what predicted memory was off on published runs.

It is learned from rows that say how much memory a device held (`memory_odds.yaml`, beside this file, written by
`python -m benchmarks.memory_odds`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import exp, log, log2
from statistics import NormalDist

from conf.folders import package_content
from conf.types.schema import Frozen, Positive

LIKELY = 0.9
"""Less likely plans are proposed only where there are no others, or where somebody says how much is to be free."""
NONE_LIKELY = f"no plan is {LIKELY:.0%} likely to fit"
NEAR = 8
"""Devices up to which the error does not grow with them: those of one node."""


class Learned(Frozen):
    """The logarithm of needed over predicted bytes, taken for normal.

    Attributes:
        means: of the runs of each trainer, on up to NEAR devices.
        spreads: the standard deviation of a new run of each.
        other_mean, other_spread: of trainers that no run tells of.
        doubling: by how much a mean grows with every doubling of the devices beyond NEAR.
    """

    means: dict[str, float]
    spreads: dict[str, Positive]
    other_mean: float
    other_spread: Positive
    doubling: float


@dataclass(frozen=True, slots=True)
class MemoryOdds:
    """What is known of the memory that plans of one trainer need on so many devices, beside the predicted."""

    needed: NormalDist

    @classmethod
    def of(cls, trainer: str, num_devices: int, known: Learned | None = None) -> MemoryOdds:
        known = known or load_learned()
        mean, spread = known.means.get(trainer, known.other_mean), known.spreads.get(trainer, known.other_spread)
        return cls(NormalDist(mean + known.doubling * log2(max(1.0, num_devices / NEAR)), spread))

    def likelihood(self, predicted_bytes: float, memory_bytes: float) -> float:
        """The probability that a plan fits."""
        return self.needed.cdf(log(memory_bytes / predicted_bytes))

    def in_words(self, predicted_bytes: float, memory_bytes: float) -> str:
        return in_words(self.likelihood(predicted_bytes, memory_bytes))

    def room_bytes(self, memory_bytes: int) -> int:
        """The most predicted bytes with which a plan is LIKELY to fit; never more than there are."""
        return int(memory_bytes * exp(min(0.0, -self.needed.inv_cdf(LIKELY))))


def in_words(likelihood: float) -> str:
    return f"{likelihood:.0%} likely to fit"


@cache
def load_learned() -> Learned:
    return Learned.model_validate(package_content("memory_odds.yaml", "sweeps"))
