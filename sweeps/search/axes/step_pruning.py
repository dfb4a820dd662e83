"""Ends running trials early whose loss is worse than that of others was after as many tokens.

`median` and `halving` are the rules of Optuna's MedianPruner and SuccessiveHalvingPruner (asynchronous successive
halving, arXiv 1810.05934). Here they are computed from the metrics that trials leave on disk, with tokens in place of
steps, so that trials of different batch sizes are compared after the same amount of training.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from sweeps.points.objectives import LAST_PART
from sweeps.reading import TrialReading
from sweeps.search.axes.seen_points import key_without_seed
from sweeps.search.searcher import Pruning
from train_core.trial.measurement import Outcome, StepMetrics

Pruner = Literal["none", "median", "halving"]
REDUCTION = 3
"""Of so many trials that reach a mark, one goes on."""
NUM_MARKS = 3
"""The marks lie at 1/27, 1/9 and 1/3 of the tokens."""
FEWEST_ENDED = 5
"""The median of fewer trials that ended is no measure."""
FIRST_JUDGED = 0.1
"""The share of its tokens before which no trial is held against the median."""
DIVERGED = "its loss is not finite any more"


@dataclass(frozen=True)
class Curve:
    """The loss of one trial over its tokens.

    Attributes:
        losses: the held-out loss where it is evaluated, else the mean of the last training losses.
        times: when each was written, in seconds since the epoch.
    """

    trial_id: str
    num_tokens: int
    tokens: tuple[int, ...]
    losses: tuple[float, ...]
    times: tuple[float, ...]

    @classmethod
    def of(cls, reading: TrialReading, longest: TrialReading | None = None) -> Curve | None:
        """Read a trial's curve; None if there is nothing to judge yet.

        Args:
            longest: of the trials of a script that completed, whose steps are as many as the others are taken to make.
        """
        experiment = reading.experiment
        if experiment is None or not reading.steps or (experiment.trainer.is_script and longest is None):
            return None
        each = experiment.batch.global_batch_size * experiment.model.seq_length
        num_steps = _num_steps(reading, longest)
        if not experiment.has_held_out_loss:
            num_records = len(longest.steps) if longest and experiment.trainer.is_script else num_steps
            points = _smooth(reading.steps, max(1, num_records // LAST_PART))
        else:
            points = [(step, step.held_out_loss) for step in reading.steps if step.held_out_loss is not None]
        if not points:
            return None
        return cls(
            reading.trial.trial_id,
            each * num_steps,
            tuple(each * step.step for step, _ in points),
            tuple(loss for _, loss in points),
            tuple(step.time for step, _ in points),
        )

    @property
    def has_diverged(self) -> bool:
        """True if there is no finite loss any more. Of one point alone that may be a step that fp16 skipped."""
        last = self.losses[-2:]
        return len(last) == 2 and not any(map(math.isfinite, last))

    def index_after(self, tokens: float) -> int | None:
        """The number of the first finite loss of the curve after so many tokens; None where it is not there yet."""
        first = bisect_left(self.tokens, tokens)
        return next((number for number in range(first, len(self.losses)) if math.isfinite(self.losses[number])), None)


def prunings(pruner: Pruner, trials: Sequence[TrialReading]) -> list[Pruning]:
    """The running trials that are not worth their further steps; one that has made its last step saves none.

    A further seed of a point is never among them: the mean over those that happened to do well would say nothing.
    """
    if pruner == "none":
        return []
    completed = (each for each in trials if each.outcome is Outcome.COMPLETED)
    longest = max(completed, key=lambda each: each.num_steps_done, default=None)
    curves = [(each.outcome, curve) for each in trials if (curve := Curve.of(each, longest))]
    measured = {key_without_seed(each) for each in trials if each.outcome is Outcome.COMPLETED}
    unfinished = (each for each in trials if each.num_steps_done < _num_steps(each, longest))
    judged = {each.trial.trial_id for each in unfinished if key_without_seed(each) not in measured}
    running = [curve for outcome, curve in curves if outcome is Outcome.RUNNING and curve.trial_id in judged]
    if pruner == "halving":
        found = [(curve, why_not_promoted(curve, [other for _, other in curves])) for curve in running]
    else:
        ended = [curve for outcome, curve in curves if outcome is Outcome.COMPLETED]
        found = [(curve, why_below_median(curve, ended)) for curve in running]
    return [Pruning(curve.trial_id, why) for curve, why in found if why]


def _num_steps(reading: TrialReading, longest: TrialReading | None) -> int:
    """The steps of a trial; how many a script makes, only those that have ended tell."""
    if reading.experiment is not None and reading.experiment.trainer.is_script:
        return longest.num_steps_done if longest else 0
    return reading.num_steps


def why_not_promoted(curve: Curve, others: Sequence[Curve]) -> str:
    """Return why the trial does not pass the last mark that it reached; empty if it passes."""
    if curve.has_diverged:
        return DIVERGED
    for number in range(NUM_MARKS):
        # The last mark is at one in REDUCTION of the tokens, and each earlier one at so much less again.
        share = REDUCTION ** -(NUM_MARKS - number)
        mark = curve.num_tokens * share
        here = curve.index_after(mark)
        if here is None:
            return ""
        loss, time = curve.losses[here], curve.times[here]
        # Who comes later is no reason to end a trial that had passed, so the rule gives the same answer whenever asked.
        before = [
            other.losses[there]
            for other in others
            if other.trial_id != curve.trial_id and (there := other.index_after(mark)) is not None
            if other.times[there] <= time
        ]
        competing = sorted([*before, loss])
        # The best share goes on, and always at least one.
        best = competing[: max(1, len(competing) // REDUCTION)]
        if loss > best[-1]:
            rank = competing.index(loss) + 1
            return (
                f"its loss {loss:.4g} after {share:.0%} of the tokens is number {rank} of {len(competing)}, and one in"
                f" {REDUCTION} goes on"
            )
    return ""


def why_below_median(curve: Curve, ended: Sequence[Curve]) -> str:
    """Return why the trial is worse than half of the ended ones were after as many tokens; empty if it is not."""
    if curve.has_diverged:
        return DIVERGED
    tokens = curve.tokens[-1]
    if tokens < FIRST_JUDGED * curve.num_tokens or len(ended) < FEWEST_ENDED:
        return ""
    known = [other.losses[number] for other in ended if (number := other.index_after(tokens)) is not None]
    own = [loss for loss in curve.losses if math.isfinite(loss)]
    if known and own and min(own) > median(known):
        share = tokens / curve.num_tokens
        middle = f"the median {median(known):.4g} after {share:.0%} of the tokens"
        return f"its best loss so far, {min(own):.4g}, is above {middle}"
    return ""


def _smooth(steps: Sequence[StepMetrics], window: int) -> list[tuple[StepMetrics, float]]:
    """Each step with the mean of the finite losses of the last `window` steps; NaN where all of these have none.

    Left out are first steps before any finite loss: the steps with which fp16 finds its scale say nothing.
    """
    # Running sums make every mean of a window one difference, however long the window is.
    sums, counts = [0.0], [0]
    for step in steps:
        is_finite = math.isfinite(step.loss)
        sums.append(sums[-1] + (step.loss if is_finite else 0.0))
        counts.append(counts[-1] + is_finite)
    points = []
    for number, step in enumerate(steps, start=1):
        start = max(0, number - window)
        count = counts[number] - counts[start]
        if count or number >= window:
            points.append((step, (sums[number] - sums[start]) / count if count else math.nan))
    return points
