"""The rules that say which trials run again, by what ended them, and which nodes these avoid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sweeps.folder.attempts import EndedAttempt
from sweeps.reading import Reading, TrialReading
from train_core.measurement import Fault, Outcome

RESUBMITTED = frozenset({Fault.NODE, Fault.PREEMPTED, Fault.LOST})
"""These say nothing about the trial, which is submitted again up to `max_resubmits` times."""

MOVED = frozenset({Fault.HANG, Fault.HARDWARE, Fault.START})
"""These may be the trial's fault or the node's: it is tried once more, on other nodes."""

MOVES = 1
BLAMES_NODE = MOVED | {Fault.NODE}
ASKED_FOR = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.INFEASIBLE, Outcome.NODE_FAILED, Outcome.PREEMPTED})
"""Outcomes that a person's `--retry-failed` runs again. Out of memory is none of them: the same plan needs as much."""

BAD_NODE_SUSPICION = 2.0
"""A node is left out once as many trials failed there, where each blames the nodes of its job in equal parts."""


@dataclass(frozen=True)
class RetryRule:
    """The rule that says which trials are run again.

    Attributes:
        max_resubmits: how often a trial that lost its node or its place is tried again.
        retry_cancelled: what a person cancelled is run again. A command that a person gives does so; a sweep that goes
            on by itself does not, as it would undo what the person did.
    """

    max_resubmits: int
    retry_cancelled: bool = True

    def allows(self, reading: Reading) -> bool:
        """True if the trial has no result that is to be kept, and may be tried once more."""
        measurement = reading.measurement
        if measurement is None:
            return True
        if measurement.why is Fault.CANCELLED:
            return self.retry_cancelled
        limit = self.max_resubmits if measurement.why in RESUBMITTED else MOVES
        return measurement.why in RESUBMITTED | MOVED and self._tries(reading, measurement.why) < limit

    def _tries(self, reading: Reading, why: Fault) -> int:
        """Return how often the trial was run again for such an end, in all its attempts before the last."""
        alike = RESUBMITTED if why in RESUBMITTED else MOVED
        return sum(attempt.fault in alike for attempt in reading.earlier_attempts)


class BadNode(NamedTuple):
    """A node on which different trials failed, and what the last of them said."""

    name: str
    num_trials: int
    cause: str


def bad_nodes(readings: Iterable[TrialReading]) -> list[BadNode]:
    """The nodes that no further trial is to be given, the worst first."""
    suspicion: dict[str, float] = defaultdict(float)
    failed: dict[str, list[EndedAttempt]] = defaultdict(list)
    for reading in readings:
        for node, attempt in _blaming_attempts(reading).items():
            suspicion[node] += 1 / len(attempt.nodes)
            failed[node].append(attempt)
    worst = sorted((node for node in suspicion if suspicion[node] >= BAD_NODE_SUSPICION), key=lambda n: -suspicion[n])
    return [BadNode(node, len(failed[node]), max(failed[node], key=lambda each: each.ended).cause) for node in worst]


def _blaming_attempts(reading: TrialReading) -> dict[str, EndedAttempt]:
    """Map each node that may have failed the trial to the attempt that blames it most: a trial counts once for it."""
    blamed = [attempt for attempt in reading.ended_attempts if attempt.fault in BLAMES_NODE]
    return {node: attempt for attempt in sorted(blamed, key=lambda a: -len(a.nodes)) for node in attempt.nodes}


def nodes_to_avoid(reading: Reading, bad: Iterable[BadNode], num_spare: int) -> tuple[str, ...]:
    """The nodes that the trial's next attempt is not to be given: those where it hung, and those that fail others.

    Args:
        num_spare: nodes of the cluster beyond those that the trial needs; no more are left out, else it never starts.
    """
    own = [node for attempt in reading.ended_attempts if attempt.fault in MOVED for node in attempt.nodes]
    avoided = dict.fromkeys([*own, *(node.name for node in bad)])
    return tuple(sorted(list(avoided)[: max(0, num_spare)]))
