"""`search=bayes` as a player: it is asked through the same interface as in a sweep, with trials read from memory."""

from __future__ import annotations

from math import exp
from typing import Any

from benchmarks.search_jobs.grounds import Ground
from conf.plan.experiment import Experiment
from conf.types.schema import Value
from sweeps.planner.plans.strategy import Strategy
from sweeps.replay.reading import ReplayedReading, replayed_reading
from sweeps.replay.run import as_measured
from sweeps.search.layouts.bayes import Bayes
from sweeps.trial import Trial

MIN_GAIN = 0.01
UNLIMITED = 100_000


class Ours:
    """Everything that it knows of the ground is in the trials that it is shown."""

    name = "search=bayes"

    def __init__(self, ground: Ground, min_gain: float = MIN_GAIN) -> None:
        self.ground = ground
        self.search = Bayes(ground.site.candidates, "throughput", min_gain, UNLIMITED)
        self.trials: list[ReplayedReading] = []

    def next_row(self) -> int | None:
        proposals = self.search.ask(self.trials, 1).proposals
        return self.ground.row_of(_experiment(self.ground, proposals[0].point)) if proposals else None

    def tell(self, row: int, log_cost: float | None) -> None:
        self.trials.append(finished(self.ground, row, log_cost))


def finished(ground: Ground, row: int, log_cost: float | None) -> ReplayedReading:
    """The trial of a plan of the ground that ended like this."""
    experiment = ground.site.legal.experiment(row)
    assert experiment is not None
    trial = Trial(
        trial_id=str(row),
        point={},
        experiment=experiment,
        estimate=None,
        infeasible_reason=None,
        selected=True,
        is_baseline=False,
    )
    # Where it ran out of memory no step was timed, and the number is not looked at.
    seconds = exp((ground.log_costs[row] if log_cost is None else log_cost) - ground.site.to_cost[row])
    peak = experiment.cluster.device.memory_bytes + float(ground.over_bytes[row])
    return replayed_reading(trial, as_measured(experiment, seconds, peak))


def _experiment(ground: Ground, point: dict[str, Value]) -> Experiment:
    named: dict[str, Any] = {key.rsplit(".", 1)[-1]: value for key, value in point.items()}
    return Strategy.of(named).experiment(ground.site.legal.parts)
