"""Which points are measured once more: the leaders and the baseline in turn, until their intervals part.

A first measurement of all points comes before. Then the points take turns (A B C A B C), so that a machine that slows
down for a while slows all of them. Nothing is kept between two questions: the trials say all that happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.reading import TrialReading
from sweeps.repeats.points import MeasuredPoint, measured_points, rivals_of
from sweeps.search.searcher import Answer, Proposal
from train_core.measurement import Outcome

IN_FLIGHT = (Outcome.PENDING, Outcome.RUNNING)
MOST_LEADERS = 3
"""So many leaders take part in a round, the baseline beside them: others are measured again once these fall behind."""
ROUNDS_OF_A_STAND_IN = 3
"""How often a leader is measured on this machine at most, where the configuration does not say."""


@dataclass(frozen=True)
class Rounds:
    """The rule by which points are measured again.

    Attributes:
        most: measurements of a point, the first among them.
        every_point: all points are measured so often, as a scaling study wants it, and not only the leaders.
    """

    most: int
    every_point: bool = False

    @property
    def most_repeats(self) -> int:
        """Of all leaders together, so that leaders that change do not make a sweep much longer."""
        return (MOST_LEADERS + 1) * (self.most - 1)

    def ask(self, trials: Sequence[TrialReading], count: int, over: str) -> Answer:
        """Up to `count` further measurements.

        Args:
            over: why no new point comes.
        """
        if any(reading.outcome in IN_FLIGHT for reading in trials):
            return Answer()  # whoever is measured next depends on what is being measured now
        points = measured_points(trials)
        chosen = points if self.every_point else _leaders(points)
        asked = {_key(point): _num_asked(point, trials) for point in chosen}
        waiting = [point for point in chosen if asked[_key(point)] < self.most]
        if not waiting or self._is_spent(trials):
            return Answer(finished=self._ending(over, points, trials))
        turn = min(asked[_key(point)] for point in waiting)
        taking_it = [point for point in waiting if asked[_key(point)] == turn]
        return Answer(tuple(self._proposal(point, turn) for point in taking_it[:count]))

    def _is_spent(self, trials: Sequence[TrialReading]) -> bool:
        return not self.every_point and sum(each.trial.repeat > 0 for each in trials) >= self.most_repeats

    def _ending(self, over: str, points: Sequence[MeasuredPoint], trials: Sequence[TrialReading]) -> str:
        """Why the sweep has ended."""
        repeats = sum(each.trial.repeat > 0 for each in trials)
        again = f", and {repeats} measurement{'s' if repeats > 1 else ''} repeated" if repeats else ""
        if len(points) < 2 or self.every_point:
            return over + again
        found = "no clear winner among them" if rivals_of(points[0], points) else "the fastest stands apart"
        return f"{over}{again}; {found}"

    def _proposal(self, point: MeasuredPoint, turn: int) -> Proposal:
        why = "every point is measured so often" if self.every_point else "it may be the fastest, or is the baseline"
        return Proposal(point.middle.trial.point, f"round {turn + 1} of at most {self.most}: {why}", repeat=turn)


def next_repeat(trial: TrialReading, trials: Sequence[TrialReading]) -> int:
    """The number of the next measurement of the trial's point."""
    assert trial.experiment is not None
    mark = trial.experiment.fingerprint
    return 1 + max(each.trial.repeat for each in trials if each.experiment and each.experiment.fingerprint == mark)


def _leaders(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The best, those that may equal it, and the baseline; nobody where nothing may equal the best."""
    if not points or not (rivals := rivals_of(points[0], points)):
        return []
    leaders = [points[0], *rivals][:MOST_LEADERS]
    return leaders + [point for point in points if point.is_baseline and point not in leaders]


def _key(point: MeasuredPoint) -> str:
    assert point.middle.experiment is not None
    return point.middle.experiment.fingerprint


def _num_asked(point: MeasuredPoint, trials: Sequence[TrialReading]) -> int:
    """How often the point was to be measured, whatever became of it: one that fails again is not tried for ever."""
    return next_repeat(point.middle, trials)
