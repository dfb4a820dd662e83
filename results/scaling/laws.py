"""Two laws of scaling, each with one number: the share of the work that more devices do not speed up.

Amdahl 1967 (strong scaling, the work is constant): a step on n times the devices takes s + (1 - s) / n of its time.
Gustafson 1988 (weak scaling, the work grows with the devices): n times the devices do s + (1 - s) n times the work.
Both are linear in s, so that least squares has a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ScalingLaw = Literal["Amdahl", "Gustafson"]


@dataclass(frozen=True)
class Fit:
    """A law with the share that was fitted.

    Attributes:
        serial_share: s; negative where the speed-up was better than linear.
        num_points: beyond the baseline, to which one number was fitted.
    """

    law: ScalingLaw
    serial_share: float
    num_points: int

    def efficiency(self, factor: float) -> float:
        """Rate per device over the baseline's, on so many times its devices."""
        if self.law == "Amdahl":
            return 1 / (self.serial_share * factor + 1 - self.serial_share)
        return self.serial_share / factor + 1 - self.serial_share


def amdahl(efficiencies: Sequence[tuple[float, float]]) -> Fit | None:
    """The fit to pairs of a factor of devices and the efficiency there; None without a point beyond the baseline.

    The relative time is 1 / (n E), so that n^-1 (1/E - 1) = s (1 - 1/n).
    """
    pairs = [(1 - 1 / factor, (1 / efficiency - 1) / factor) for factor, efficiency in efficiencies if factor > 1]
    return _fitted("Amdahl", pairs)


def gustafson(efficiencies: Sequence[tuple[float, float]]) -> Fit | None:
    """Likewise; the relative throughput is n E, so that n (1 - E) = s (n - 1)."""
    pairs = [(factor - 1, factor * (1 - efficiency)) for factor, efficiency in efficiencies if factor > 1]
    return _fitted("Gustafson", pairs)


def _fitted(law: ScalingLaw, pairs: Sequence[tuple[float, float]]) -> Fit | None:
    """Least squares of `y = s x` through the origin."""
    if not pairs:
        return None
    share = sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)
    return Fit(law, share, len(pairs))
