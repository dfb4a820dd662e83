"""Finished trials refine the constants of the cost model: what they say, which constants they fix, what is gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from calibrate.robust_fit import Constant, Floats, Values, choose, refit
from conf.errors import UsageError
from conf.experiment import Experiment
from conf.world import ClusterSpec
from results.report.predicted_part import has_device_per_rank
from sweeps.sweep import Sweep
from train_core.costs.estimate import estimate, plan_of, setting_of
from train_core.costs.price import price
from train_core.costs.setting import Plans
from train_core.measurement import Environment, Performance

FEWEST_TRIALS = 3
FEWEST_TO_LEAVE_ONE_OUT = 5
"""With fewer trials, each one left out would take too much of what the constants rest on."""

CONSTANTS = (
    Constant("matmul", 0.005, 1.0),
    Constant("attention", 0.002, 1.0),
    Constant("memory", 0.02, 1.0),
    Constant("link", 0.01, 1.0),
    Constant("kernel_seconds", 1e-7, 1e-2),
)
"""Fields of `EfficiencySpec`. The bounds are physical: no share above 1, no kernel that takes only a few cycles."""


@dataclass(frozen=True)
class FinishedTrial:
    """One measured step time.

    Attributes:
        counts: the fit uses it; a trial whose ranks shared devices in a way that the cost model does not know is only
            shown.
    """

    label: str
    experiment: Experiment
    step_seconds: float
    environment: Environment | None
    counts: bool


@dataclass(frozen=True)
class FittedTrial:
    """Seconds of a step, measured and predicted; `left_out` by constants that were fitted without this trial."""

    trial: FinishedTrial
    before: float
    after: float
    left_out: float | None


@dataclass(frozen=True)
class Refit:
    """What the trials make of the constants.

    Attributes:
        before, after: every constant by name.
        left_alone: constants that were not fitted, and why.
    """

    before: dict[str, float]
    after: dict[str, float]
    left_alone: dict[str, str]
    trials: tuple[FittedTrial, ...]

    @property
    def fitted(self) -> list[str]:
        return [name for name in self.before if name not in self.left_alone]

    @property
    def error_before(self) -> float:
        """Mean absolute error of the trials that count, as a share of what was measured; `error_after` likewise."""
        return _mean_error([(each.before, each.trial.step_seconds) for each in self.trials if each.trial.counts])

    @property
    def error_after(self) -> float:
        return _mean_error([(each.after, each.trial.step_seconds) for each in self.trials if each.trial.counts])

    @property
    def error_left_out(self) -> float | None:
        """The mean error if each trial is predicted by constants fitted without it; None below five trials."""
        pairs = [(each.left_out, each.trial.step_seconds) for each in self.trials if each.left_out is not None]
        return _mean_error([(predicted, seconds) for predicted, seconds in pairs if predicted]) if pairs else None


def finished_trials(sweep: Sweep, cluster: ClusterSpec) -> list[FinishedTrial]:
    """Every trial of the sweep that measured a step time on one cluster, in the order of its record.

    Args:
        cluster: as it is to be fitted.
    """
    return [
        FinishedTrial(
            result.label,
            result.trial.experiment,
            result.performance.step_seconds,
            result.measurement.environment if result.measurement else None,
            has_device_per_rank(result) or _shares_cores(result.trial.experiment, cluster, result.performance),
        )
        for result in sweep.read()
        if result.trial.experiment and not result.trial.experiment.mixed and result.performance
    ]


def _shares_cores(experiment: Experiment, cluster: ClusterSpec, performance: Performance) -> bool:
    """Whether the ranks took turns on as many cores as the cluster file says, which the cost model knows about."""
    cores = (cluster.cores_per_node or 0) * experiment.num_nodes
    return performance.num_devices == min(experiment.parallel.world_size, cores)


def refit_cluster(
    cluster: ClusterSpec, trials: Sequence[FinishedTrial], constants: Sequence[Constant] = CONSTANTS
) -> Refit:
    """Fit the constants of `cluster` to the trials that count.

    Raises:
        UsageError: there are too few of them.
    """
    counted = [trial for trial in trials if trial.counts]
    if len(counted) < FEWEST_TRIALS:
        num_sharing = len(trials) - len(counted)
        sharing = f" ({num_sharing} more ran with ranks that shared devices)" if num_sharing else ""
        problem = f"{len(counted)} trials have a step time to fit to{sharing}, and at least {FEWEST_TRIALS} are needed"
        raise UsageError(problem, "Run more points of the sweep first.")
    present = {each.name: float(getattr(cluster.efficiency, each.name)) for each in constants}
    chosen = choose(_Ratios(cluster, counted), constants, present)
    found = refit(_Ratios(cluster, counted), chosen.fitted, present)
    return Refit(
        before=present,
        after={**present, **found},
        left_alone=chosen.left_alone,
        trials=_fitted_trials(cluster, trials, chosen.fitted, present, found),
    )


def _fitted_trials(
    cluster: ClusterSpec, trials: Sequence[FinishedTrial], constants: Sequence[Constant], present: Values, found: Values
) -> tuple[FittedTrial, ...]:
    before = predicted_seconds(cluster, trials, present)
    after = predicted_seconds(cluster, trials, found)
    counted = [trial for trial in trials if trial.counts]
    leaves = len(counted) >= FEWEST_TO_LEAVE_ONE_OUT
    return tuple(
        FittedTrial(
            trial,
            float(old),
            float(new),
            _without(cluster, counted, trial, constants, present, found) if leaves and trial.counts else None,
        )
        for trial, old, new in zip(trials, before, after, strict=True)
    )


def _without(
    cluster: ClusterSpec,
    counted: Sequence[FinishedTrial],
    trial: FinishedTrial,
    constants: Sequence[Constant],
    present: Values,
    found: Values,
) -> float:
    """Seconds predicted for `trial` by the same constants, fitted to the others."""
    others = [other for other in counted if other is not trial]
    # Begun where the fit to all trials ended, which is only a few steps away.
    values = refit(_Ratios(cluster, others), constants, present, start=found)
    return float(predicted_seconds(cluster, [trial], values)[0])


class _Ratios:
    """Log of predicted over measured for given constants: being half as fast weighs as much as being twice as fast."""

    def __init__(self, cluster: ClusterSpec, trials: Sequence[FinishedTrial]) -> None:
        self._cluster, self._trials = cluster, trials
        self._measured = np.array([trial.step_seconds for trial in trials])

    def __call__(self, values: Values) -> Floats:
        ratios: Floats = np.log(predicted_seconds(self._cluster, self._trials, values) / self._measured)
        return ratios


def predicted_seconds(cluster: ClusterSpec, trials: Sequence[FinishedTrial], values: Values) -> Floats:
    """What the cost model says with these constants; trials of one model and precision are priced together."""
    efficiency = cluster.efficiency.model_copy(update=dict(values))
    experiments = [_on(cluster.model_copy(update={"efficiency": efficiency}), trial.experiment) for trial in trials]
    seconds = np.zeros(len(trials))
    for indices in _priced_together(experiments):
        together = [experiments[index] for index in indices]
        seconds[indices] = _price(together)
    return seconds


def _on(cluster: ClusterSpec, experiment: Experiment) -> Experiment:
    """The experiment on `cluster`, whose file may have changed since, but on as many nodes as it ran on."""
    nodes = {name: getattr(experiment.cluster, name) for name in ("num_nodes", "devices_per_node")}
    return experiment.model_copy(update={"cluster": cluster.model_copy(update=nodes)})


def _priced_together(experiments: Sequence[Experiment]) -> list[list[int]]:
    """Indices of the experiments that one call of the vectorised cost model can price."""
    # A fit prices all trials hundreds of times. A plan with listed layers per stage is priced alone, by `estimate`.
    groups: dict[object, list[int]] = {}
    for index, experiment in enumerate(experiments):
        alone = index if experiment.parallel.layers_per_stage is not None else None
        cluster = experiment.cluster
        key = (experiment.model, experiment.precision.dtype, cluster.num_nodes, cluster.devices_per_node, alone)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _price(experiments: Sequence[Experiment]) -> Floats:
    if len(experiments) == 1:
        return np.array([estimate(experiments[0]).step_seconds])
    plans = [plan_of(experiment) for experiment in experiments]
    columns = {field.name: np.concatenate([getattr(plan, field.name) for plan in plans]) for field in fields(Plans)}
    return np.asarray(price(setting_of(experiments[0]), Plans(**columns)).step_seconds, dtype=np.float64)


def _mean_error(pairs: Sequence[tuple[float, float]]) -> float:
    return float(np.mean([abs(predicted / measured - 1) for predicted, measured in pairs]))
