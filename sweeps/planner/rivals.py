"""The certainty of a search's order: the interval of every plan, and the families that may equal the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.setup_parts import SetupParts
from sweeps.confidence import Interval, interval_of
from sweeps.planner.choice import Candidate, Choice
from train_core.costs import estimate

NEARLY_FULL = 0.9
"""Share of a device's memory above which a plan is said to be close to it: predictions err by a few percent, and what
other libraries take is not in them."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan with what is known of its prediction's error."""

    candidate: Candidate
    interval: Interval

    @property
    def memory_share(self) -> float:
        return self.candidate.peak_memory_bytes / self.candidate.space.setting.cluster.device.memory_bytes

    @property
    def is_nearly_full(self) -> bool:
        return self.memory_share > NEARLY_FULL


def judge(candidates: Sequence[Candidate], parts: SetupParts) -> list[Judged]:
    """The candidates with their intervals.

    Args:
        parts: precision and what else the search was asked for; model and cluster are those of each candidate.
    """
    return [_judge(candidate, parts) for candidate in candidates]


def _judge(candidate: Candidate, parts: SetupParts) -> Judged:
    setting = candidate.space.setting
    like = parts.model_copy(update={"model": setting.model, "cluster": setting.cluster, "mixed": None})
    setup = candidate.strategy.setup(like)
    predicted = estimate(setup, setting.implementation)
    return Judged(candidate, interval_of(setup, setting.implementation.name, predicted))


def num_rivals(choice: Choice, best: Judged) -> int:
    """The number of families that predictions cannot tell from the best, itself among them.

    It is the least number where families were left out unpriced (`Choice.num_left_out`).
    """
    limit = choice.family_values[0] * (1 + best.interval.rivals)
    return sum(value <= limit for value in choice.family_values)
