"""The certainty of a verdict on disturbed runs: sweeps with known truths, replayed through the real rules.

python -m benchmarks disturbed_runs

Every series of steps is made up, so that these are replays and no measurements. The parameters of the rules were chosen
on other seeds than those that are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.replay.run import NOWHERE, ReplayedReading, as_measured
from benchmarks.target import Target, at_least, at_most, figure
from conf.compose.load import compose
from conf.overrides import Overrides
from sweeps.points.plan import plan_sweep
from sweeps.ranking.disturbed import RATES, disturbances
from sweeps.ranking.points import measured_points, rivals_of_first
from sweeps.ranking.rounds import ROUNDS_OF_A_STAND_IN, Rounds, far_from_prediction
from sweeps.trial import Trial, repeat_id
from train_core.trial.measurement import Measurement

NUM_REPLAYS = 1000
FIRST_SEED = 7_000_000
NUM_POINTS = 16
SHARE_DISTURBED = 0.15
"""The share of disturbed runs among all, repeats too."""
PREDICTION_ERROR = 0.08
"""Standard deviation of the logarithm of the true seconds over the predicted ones."""
BETWEEN_RUNS = 0.015
"""The same of a run's own speed; within a run steps jitter by 1 to 5 %, one level for each machine."""
SWEEP = ("sweep=175b", "sweep.max_trials=48")
SHARE_WITH_A_SLOW_STEP = 0.3
"""The share of runs with one step that takes 1.3 to 4 times as long: a page fault, or a garbage collection."""

Factors = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Series(ReplayedReading):
    """A run with made-up steps.

    Attributes:
        kind: what disturbed it; empty where nothing did.
    """

    series: tuple[float, ...]
    kind: str

    @property
    def timed_seconds(self) -> tuple[float, ...]:
        return self.series


class Replay(NamedTuple):
    """The end of one sweep.

    Attributes:
        caught, missed, alarmed, quiet: first runs by what disturbed them.
        is_right: the verdict names the truly fastest point, or says that others may be as fast.
        is_named: it names one.
    """

    caught: Counter[str]
    missed: Counter[str]
    num_alarms: int
    num_quiet: int
    num_runs: int
    is_right: bool
    is_named: bool


def main() -> list[Target]:
    disturbed = [replay_of(FIRST_SEED + seed, SHARE_DISTURBED) for seed in range(NUM_REPLAYS)]
    quiet = [replay_of(2 * FIRST_SEED + seed, 0.0) for seed in range(NUM_REPLAYS)]
    return [*_verdicts("disturbed", disturbed), *_catches(disturbed), *_verdicts("quiet", quiet), _alarms(quiet)]


def replay_of(seed: int, share_disturbed: float) -> Replay:
    """One sweep: all points once, and then whatever the rounds ask for."""
    machine = DisturbedMachine(np.random.default_rng(seed), share_disturbed)
    runs = [machine.run(trial) for trial in machine.trials]
    disturbed = disturbances(runs)
    found = {*disturbed, *(point.middle.trial.trial_id for point in far_from_prediction(measured_points(runs)))}
    caught = Counter(run.kind for run in runs if run.kind and run.trial.trial_id in found)
    missed = Counter(run.kind for run in runs if run.kind and run.trial.trial_id not in found)
    alarms = sum(not run.kind and run.trial.trial_id in found for run in runs)
    num_quiet = sum(not run.kind for run in runs)
    while proposals := Rounds(ROUNDS_OF_A_STAND_IN).ask(runs, NUM_POINTS, "").proposals:
        runs += [machine.run(machine.repeat_of(each.point, each.repeat)) for each in proposals]
    points = measured_points(runs)
    is_named = not points[0].disturbed and not rivals_of_first(points)
    is_right = not is_named or points[0].middle.trial.point == machine.fastest.point
    return Replay(caught, missed, alarms, num_quiet, len(runs), is_right, is_named)


class DisturbedMachine:
    """A machine that knows what every trial truly takes, and disturbs some of its runs."""

    def __init__(self, draw: Generator, share_disturbed: float) -> None:
        self.draw = draw
        self.share_disturbed = share_disturbed
        self.num_steps = int(draw.integers(5, 21))
        self.jitter = draw.uniform(0.01, 0.05)
        known = _trials()
        self.trials: list[Trial] = [known[place] for place in draw.permutation(len(known))[:NUM_POINTS]]
        errors = np.exp(draw.normal(0.0, PREDICTION_ERROR, NUM_POINTS))
        self.seconds = {
            str(trial.point): trial.estimate.step_seconds * error
            for trial, error in zip(self.trials, errors, strict=True)
            if trial.estimate
        }

    @property
    def fastest(self) -> Trial:
        return max(self.trials, key=lambda trial: _flops_per_device(trial) / self.seconds[str(trial.point)])

    def repeat_of(self, point: object, repeat: int) -> Trial:
        first = next(trial for trial in self.trials if trial.point == point)
        return first.model_copy(update={"repeat": repeat, "trial_id": repeat_id(first.trial_id, repeat)})

    def run(self, trial: Trial) -> Series:
        kinds = list(DISTURBANCES)
        kind = kinds[self.draw.integers(len(kinds))] if self.draw.random() < self.share_disturbed else ""
        steps = np.exp(self.draw.normal(0.0, self.jitter, self.num_steps)) * np.exp(self.draw.normal(0.0, BETWEEN_RUNS))
        if self.draw.random() < SHARE_WITH_A_SLOW_STEP:
            steps[self.draw.integers(self.num_steps)] *= self.draw.uniform(1.3, 4.0)
        if kind:
            steps *= DISTURBANCES[kind](self.draw, self.num_steps)
        seconds = tuple(map(float, steps * self.seconds[str(trial.point)]))
        left = _measurement(trial, seconds)
        return Series(folder=NOWHERE, experiment=trial.experiment, trial=trial, left=left, series=seconds, kind=kind)


def two_speeds(draw: Generator, num_steps: int) -> Factors:
    """Some steps, two at least and not all, are slower by one factor."""
    factors = np.ones(num_steps)
    factors[draw.permutation(num_steps)[: draw.integers(2, num_steps)]] = draw.uniform(1.3, 2.5)
    return factors


def drift(draw: Generator, num_steps: int) -> Factors:
    """The last step is slower than the first, or the first than the last."""
    line = np.linspace(0.0, np.log(draw.uniform(1.3, 2.0)), num_steps)
    return np.exp(line if draw.random() < 0.5 else line[::-1])


def slow_node(draw: Generator, num_steps: int) -> Factors:
    """All steps are slower by one factor, so that nothing within the run shows it."""
    return np.full(num_steps, draw.uniform(1.4, 2.0))


def co_tenants(draw: Generator, num_steps: int) -> Factors:
    """Others come for a while, two steps at least, and take of every step a part of its own."""
    length = int(draw.integers(2, num_steps))
    begin = int(draw.integers(0, num_steps - length + 1))
    factors = np.ones(num_steps)
    factors[begin : begin + length] = draw.uniform(1.25, 2.5, length)
    return factors


DISTURBANCES: Mapping[str, Callable[[Generator, int], Factors]] = {
    "two speeds": two_speeds,
    "drift": drift,
    "a slow node": slow_node,
    "co-tenants": co_tenants,
}


@cache
def _trials() -> tuple[Trial, ...]:
    """The points of a sweep that fit on paper, one of each predicted time."""
    record = plan_sweep(compose(Overrides.parse(SWEEP)), proxy=False, git_sha="")
    return tuple(trial for trial in record.trials if trial.estimate and not trial.infeasible_reason)


@cache
def _template(fingerprint: str) -> Measurement:
    experiment = next(
        trial.experiment for trial in _trials() if trial.experiment and trial.experiment.fingerprint == fingerprint
    )
    return as_measured(experiment, 1.0, 0.0)


def _flops_per_device(trial: Trial) -> float:
    performance = _template(trial.planned.fingerprint).performance
    assert performance is not None
    return performance.model_flops / performance.num_devices


def _measurement(trial: Trial, seconds: Sequence[float]) -> Measurement:
    template = _template(trial.planned.fingerprint)
    known = template.performance
    assert known is not None
    middle = float(np.median(seconds))
    times = {"step_seconds": middle, "step_seconds_min": min(seconds), "step_seconds_max": max(seconds)}
    rates = {name: getattr(known, name) / middle for name in RATES}
    measured = known.model_copy(update={**times, **rates, "num_timed_steps": len(seconds)})
    return template.model_copy(update={"performance": measured})


def _verdicts(name: str, replays: Sequence[Replay]) -> list[Target]:
    share_right = 100 * float(np.mean([each.is_right for each in replays]))
    named = 100 * float(np.mean([each.is_named for each in replays]))
    runs = float(np.mean([each.num_runs for each in replays])) / NUM_POINTS
    what = f"{len(replays):,} replays of {name} sweeps"
    return [
        at_least(f"{what}: the verdict is right or says that it cannot tell", 95, share_right, " %"),
        figure(f"{what}: it names one", named, " %"),
        figure(f"{what}: runs for each point", runs),
    ]


def _catches(replays: Sequence[Replay]) -> list[Target]:
    caught = sum((each.caught for each in replays), Counter[str]())
    missed = sum((each.missed for each in replays), Counter[str]())
    return [
        at_least("disturbed runs that are found", 90, _share(caught.total(), missed.total()), " %"),
        *(figure(f"  {kind}", _share(caught[kind], missed[kind]), " %") for kind in DISTURBANCES),
        _alarms(replays),
    ]


def _alarms(replays: Sequence[Replay]) -> Target:
    alarms, quiet = sum(each.num_alarms for each in replays), sum(each.num_quiet for each in replays)
    return at_most("quiet runs that are called disturbed or late", 2, _share(alarms, quiet - alarms), " %")


def _share(yes: int, no: int) -> float:
    return 100 * yes / (yes + no)
