"""The choice of points to measure once more: first disturbed ones, then the leaders and the baseline.

A first measurement of all points comes before. Then the points take turns (A B C A B C), so that a machine that slows
down for a while slows all of them, the leaders until their intervals part. Nothing is kept between two questions: the
trials say all that happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conf.units import count_of
from sweeps.ranking.disturbed import disturbances, late_ones, lateness
from sweeps.ranking.points import MeasuredPoint, measured_points, rivals_of_first
from sweeps.reading import TrialReading
from sweeps.search.searcher import Answer, Proposal
from train_core.trial.measurement import LIVE, Outcome

UNMEASURED = (*LIVE, Outcome.CANCELLED, None)
"""A repeat that stands so was asked for and never tried. One that failed was: it is not tried for ever."""
MOST_LEADERS = 3
"""So many leaders take part in a round, the baseline beside them: others are measured again once these fall behind."""
ROUNDS_OF_A_STAND_IN = 3
"""How often a leader is measured on this machine at most, where the configuration does not say."""

FAR = "it was slower than predicted by far more than the other points were"
EVERY = "every point is measured so often"
LEADING = "it may be the fastest, or is the baseline"
Wanted = tuple[MeasuredPoint, str]
"""A point that is to be measured once more, and why."""


@dataclass(frozen=True)
class Rounds:
    """The rule by which points are measured again.

    The leaders are measured `most` times at most, the first time included; with `every_point` all points are, as a
    scaling study wants it.
    """

    most: int
    every_point: bool = False

    def ask(self, trials: Sequence[TrialReading], count: int, over: str) -> Answer:
        """Up to `count` further measurements; `over` is why no new point comes."""
        if any(reading.outcome in LIVE for reading in trials):
            return Answer()  # whoever is measured next depends on what is being measured now
        points = measured_points(trials)
        num_tried = Counter(each.trial.mark for each in trials if each.outcome not in UNMEASURED)
        # Whoever cancelled a repeat has it back with the next command, and no other in its place before.
        given_up = {each.trial.mark for each in trials if each.trial.repeat and each.outcome in UNMEASURED}

        def may_run(point: MeasuredPoint) -> bool:
            return num_tried[point.middle.trial.mark] < self.most and point.middle.trial.mark not in given_up

        waiting = [each for each in self._doubtful_points(points, trials, num_tried) if may_run(each[0])]
        waiting = waiting or [each for each in self._repeat_candidates(points, trials) if may_run(each[0])]
        if not waiting:
            return Answer(finished=self._ending(over, points, trials))
        turn = min(num_tried[point.middle.trial.mark] for point, _ in waiting)
        taking_it = [each for each in waiting if num_tried[each[0].middle.trial.mark] == turn]
        return Answer(tuple(self._proposal(point, why, trials) for point, why in taking_it[:count]))

    def _doubtful_points(
        self, points: Sequence[MeasuredPoint], trials: Sequence[TrialReading], num_tried: Mapping[str, int]
    ) -> list[Wanted]:
        """The points that no steady run measured, and those to be measured twice, with the reason.

        On a machine that disturbs everything they come to as many repeats as there are points, and no more.
        """
        if _num_repeats(trials) >= len(points):
            return []
        far = [(point, FAR) for point in far_from_prediction(points) if num_tried[point.middle.trial.mark] == 1]
        return [(point, point.disturbed) for point in points if point.disturbed] + far

    def _repeat_candidates(self, points: Sequence[MeasuredPoint], trials: Sequence[TrialReading]) -> list[Wanted]:
        """All points, or the leaders while they have repeats left: one that answers a disturbed run is not theirs."""
        if self.every_point:
            return [(point, EVERY) for point in points]
        # Of all leaders together, so that leaders that change do not make a sweep much longer.
        most = (MOST_LEADERS + 1) * (self.most - 1)
        is_spent = _num_repeats(trials) - len(disturbances(trials)) >= most
        return [] if is_spent else [(point, LEADING) for point in _leaders(points)]

    def _ending(self, over: str, points: Sequence[MeasuredPoint], trials: Sequence[TrialReading]) -> str:
        """Return the sentence that says why the sweep has ended."""
        repeats = _num_repeats(trials)
        again = f", and {count_of(repeats, 'measurement')} repeated" if repeats else ""
        if len(points) < 2 or self.every_point:
            return over + again
        found = "no clear winner among them" if rivals_of_first(points) else "the fastest stands apart"
        return f"{over}{again}; {found}"

    def _proposal(self, point: MeasuredPoint, why: str, trials: Sequence[TrialReading]) -> Proposal:
        repeat = next_repeat(point.middle, trials)
        said = f"round {repeat + 1} of at most {max(self.most, repeat + 1)}: {why}"
        return Proposal(point.middle.trial.point, said, repeat=repeat)


def next_repeat(trial: TrialReading, trials: Sequence[TrialReading]) -> int:
    """The number of the next measurement of the trial's point."""
    mark = trial.planned.fingerprint
    return 1 + max(each.trial.repeat for each in trials if each.experiment and each.experiment.fingerprint == mark)


def _leaders(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The best, those that may equal it, and the baseline; nobody where nothing may equal the best."""
    if not points or not (rivals := rivals_of_first(points)):
        return []
    leaders = [points[0], *rivals][:MOST_LEADERS]
    return leaders + [point for point in points if point.is_baseline and point not in leaders]


def _num_repeats(trials: Sequence[TrialReading]) -> int:
    """Count the repeats that were tried, whatever became of them."""
    return sum(each.trial.repeat > 0 and each.outcome not in UNMEASURED for each in trials)


def far_from_prediction(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    known = [(point, late) for point in points if not point.disturbed and (late := lateness(point.middle)) is not None]
    flags = late_ones([late for _, late in known])
    return [point for (point, _), is_late in zip(known, flags, strict=True) if is_late]
