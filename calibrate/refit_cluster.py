"""Finished trials refine the constants of the cost model: what they say, which constants they fix, what is gained.

A few say one thing alone: how much longer all steps of their trainer take on this cluster than predicted, its level.
Constants are fitted to more of them, and kept if they predict each run from the others better than a level does.

Where five runs are to be proposed, they are taken one after another, each the one whose step is least certain once
those before it are known: constants are as uncertain as their spreads say, and a run reveals one combination of them.
This is the greedy D-optimal design."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.robust_fit import Constant, Floats, LogRatios, Values, choose_constants, refit, slopes
from conf.errors import UsageError
from conf.plan.setup import Setup
from conf.types.cluster_spec import ClusterSpec, EfficiencySpec, OwnLevel
from conf.types.trainer_spec import Practice
from costs.estimate import plan_of, setting_of
from costs.setting import SCALE, Booleans, Plans, Scale, Setting
from costs.stages import listed_stages, spread_stages
from costs.step.priced_stage import priced_stages
from costs.step.step_time import step_columns
from costs.trainers import IMPLEMENTATIONS, Implementation
from costs.work import work_of
from sweeps.practice import Level, load_levels, practice_of_own
from sweeps.sweep import Sweep
from train_core.trial.measurement import Environment

FEWEST_TO_LEAVE_ONE_OUT = 3
"""With fewer trials, each one left out would take too much of what is learned from them."""
FEWEST_TO_FIT = 5
"""Fewer trials say a level alone. Constants follow a single odd one: fitted to three rows of a published table, one of
which took three times as long as others, they were off by 163 % on the rest of it, and a level by 14 %."""

MOVED_TOGETHER = "all predictions for a trainer move by one factor"

CONSTANTS = (
    Constant("matmul", 0.005, 1.0, 0.25),
    Constant("attention", 0.002, 1.0, 0.4),
    Constant("memory", 0.02, 1.0, 0.3),
    Constant("link", 0.01, 1.0, 0.5),
    Constant("kernel_seconds", 1e-7, 1e-2, 0.8),
    Constant("shown", 0.02, 1.0, 0.5),
    Constant("latency", 0.2, 20.0, 0.5),
    Constant("slowest", 0.001, 0.1, 0.5),
    Constant("taper", 0.003, 1.0, 0.5),
    Constant("start", 1e-7, 1e-3, 0.4),
    Constant("launch", 0.1, 10.0, 0.4),
)
"""Fields of `EfficiencySpec`. The bounds are physical: no share above 1, no kernel that takes only a few cycles.

The spreads suited published tables that were calibrated on five of their rows (docs/validation.md). They are wider than
those between chips, because these constants also make up for what the model does not know of a table.
"""


@dataclass(frozen=True)
class FinishedTrial:
    """One measured step time, and the trainer whose costs predict it.

    Attributes:
        counts: the fit uses it; a trial whose ranks shared devices as the cost model does not know is only shown.
        practice: how well it is tuned; None: see `sweeps.practice.practice_of_own`.
    """

    label: str
    setup: Setup
    step_seconds: float
    environment: Environment | None
    counts: bool
    implementation: Implementation
    practice: Practice | None = None


@dataclass(frozen=True)
class FittedTrial:
    """Seconds of a step, measured and predicted; `left_out` by what was learned without this trial."""

    trial: FinishedTrial
    before: float
    after: float
    left_out: float | None


@dataclass(frozen=True)
class Refit:
    """The constants by name, before and after they were fitted to the trials, and why some were left alone.

    Attributes:
        levels: by trainer, where these were learned; the constants then are what they were.
    """

    before: dict[str, float]
    after: dict[str, float]
    left_alone: dict[str, str]
    trials: tuple[FittedTrial, ...]
    levels: dict[str, OwnLevel] = field(default_factory=dict)

    @property
    def fitted_names(self) -> list[str]:
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
        """The mean error if each trial is predicted by what was learned without it; None below three trials."""
        pairs = [(each.left_out, each.trial.step_seconds) for each in self.trials if each.left_out]
        return _mean_error(pairs) if pairs else None


def finished_trials(sweep: Sweep, cluster: ClusterSpec) -> list[FinishedTrial]:
    """Every trial of the sweep that measured a step time on the cluster to be fitted, in the order of its record."""
    trials = []
    for result in sweep.read():
        experiment, performance = result.trial.experiment, result.performance
        if experiment and not experiment.mixed and performance:
            # The cost model knows of ranks that take turns on as many cores as the cluster file says.
            cores = min(experiment.parallel.world_size, (cluster.cores_per_node or 0) * experiment.num_nodes)
            counts = not result.shares_devices or performance.num_devices == cores
            environment = result.measurement.environment if result.measurement else None
            kind = IMPLEMENTATIONS[experiment.trainer.costs_of]
            found = FinishedTrial(result.label, experiment, performance.step_seconds, environment, counts, kind)
            trials.append(found)
    return trials


def refit_cluster(
    cluster: ClusterSpec, trials: Sequence[FinishedTrial], levels: Mapping[Practice, Level] | None = None
) -> Refit:
    """Learn from the trials that count: constants of `cluster`, or where these do no better, levels of their trainers.

    Args:
        levels: what runs of each practice usually take; None takes what is known of published rows.

    Raises:
        UsageError: no trial counts.
    """
    counts = np.array([trial.counts for trial in trials], dtype=bool)
    if not counts.any():
        sharing = f" ({len(trials)} ran with ranks that shared devices)" if trials else ""
        raise UsageError(f"No trial has a step time to fit to{sharing}", "Run points of the sweep first.")
    runs, present = priced_runs(cluster, trials), present_values(cluster.efficiency)
    plain, own = runs.step_seconds(constants_by(present)), cluster.efficiency.levels
    before = plain * [own[name].factor if (name := trial.implementation.name) in own else 1.0 for trial in trials]
    levelled = _levelled(present, trials, plain, before, levels or load_levels())
    if counts.sum() < FEWEST_TO_FIT:
        return levelled
    fitted = _fitted(runs, trials, counts, present, before)
    is_better = (fitted.error_left_out or 0.0) < (levelled.error_left_out or 0.0)
    return fitted if is_better and fitted.error_after < fitted.error_before else levelled


def _fitted(
    runs: PricedRuns, trials: Sequence[FinishedTrial], counts: Booleans, present: dict[str, float], before: Floats
) -> Refit:
    """The constants that the trials which count make, each of these predicted by a fit to the others too."""
    ratios = _ratios_of(runs, counts)
    chosen = choose_constants(ratios, CONSTANTS, present)
    values = refit(ratios, chosen.fitted, present)
    after = runs.step_seconds(constants_by(values)).tolist()
    left_out = _left_out_seconds(runs, counts, chosen.fitted, present, values)
    rows = zip(trials, before.tolist(), after, left_out, strict=True)
    return Refit(present, {**present, **values}, chosen.left_alone, tuple(FittedTrial(*row) for row in rows))


def _levelled(
    present: dict[str, float],
    trials: Sequence[FinishedTrial],
    plain: Floats,
    before: Floats,
    known: Mapping[Practice, Level],
) -> Refit:
    """The level of each trainer that the trials ran.

    Args:
        plain: predicted seconds without any level, (n,).
        before: the same with the level that the cluster has now, (n,).
    """
    taken = np.log([trial.step_seconds for trial in trials] / plain)
    names = [trial.implementation.name for trial in trials]

    def level_of(name: str, without: int | None = None) -> OwnLevel | None:
        at = [i for i, trial in enumerate(trials) if trial.counts and names[i] == name and i != without]
        if not at:
            return None
        practice = trials[at[0]].practice or practice_of_own(trials[at[0]].setup)
        return known[practice].own(taken[at].tolist())

    def seconds(i: int, level: OwnLevel | None) -> float:
        return float(plain[i] * (level.factor if level else 1.0))

    found = {name: level for name in dict.fromkeys(names) if (level := level_of(name)) is not None}
    few = sum(trial.counts for trial in trials) < FEWEST_TO_LEAVE_ONE_OUT
    fitted = []
    for i, trial in enumerate(trials):
        left_out = None if few or not trial.counts else seconds(i, level_of(names[i], without=i))
        fitted.append(FittedTrial(trial, float(before[i]), seconds(i, found.get(names[i])), left_out))
    return Refit(present, present, dict.fromkeys(present, MOVED_TOGETHER), tuple(fitted), found)


def present_values(efficiency: EfficiencySpec, scale: Scale = SCALE) -> dict[str, float]:
    """The constants as they are now: a cluster's own, else those of scale."""
    stated = {**scale.model_dump(), **efficiency.model_dump(exclude_none=True)}
    return {each.name: float(stated[each.name]) for each in CONSTANTS}


def _left_out_seconds(
    runs: PricedRuns, counts: Booleans, constants: Sequence[Constant], present: Values, fit: Values
) -> list[float | None]:
    """Seconds predicted for each run that counts by constants fitted to the others; None for one that does not."""
    seconds: list[float | None] = [None] * len(counts)
    for index in np.flatnonzero(counts):
        others = counts.copy()
        others[index] = False
        # Begun where the fit to all trials ended, which is only a few steps away.
        values = refit(_ratios_of(runs, others), constants, present, start=fit)
        seconds[index] = float(runs.step_seconds(constants_by(values))[index])
    return seconds


def _ratios_of(runs: PricedRuns, chosen: Booleans) -> LogRatios:
    """The chosen runs' log of predicted over measured, as a function of the constants by name."""
    return lambda values: runs.log_ratios(constants_by(values))[chosen]


def priced_runs(cluster: ClusterSpec, trials: Sequence[FinishedTrial]) -> PricedRuns:
    """The trials on `cluster`, whose file may have changed since, but on as many nodes as each ran on.

    They are priced without the levels of earlier runs.
    """
    bare, runs = cluster.efficiency.model_copy(update={"levels": {}}), []
    for trial in trials:
        nodes = {name: getattr(trial.setup.cluster, name) for name in ("num_nodes", "devices_per_node")}
        on_it = cluster.model_copy(update={**nodes, "efficiency": bare})
        setup = trial.setup.model_copy(update={"cluster": on_it})
        runs.append(MeasuredRun(setup, trial.implementation, trial.step_seconds))
    return PricedRuns(runs)


def constants_by(values: Values) -> ConstantsOf:
    """The constants of a setting, those of its cluster's efficiency taken from `values`."""

    def constants_of(setting: Setting) -> Constants:
        efficiency = setting.cluster.efficiency.model_copy(update=dict(values))
        return present_constants(setting)._replace(efficiency=efficiency)

    return constants_of


def _mean_error(pairs: Sequence[tuple[float, float]]) -> float:
    return float(np.mean([abs(predicted / measured - 1) for predicted, measured in pairs]))


@dataclass(frozen=True)
class MeasuredRun:
    """One configuration, the trainer that ran it, and the seconds that a step took."""

    setup: Setup
    implementation: Implementation
    step_seconds: float


class Constants(NamedTuple):
    """Everything in the cost model that may be fitted, for one run."""

    efficiency: EfficiencySpec
    implementation: Implementation
    scale: Scale


ConstantsOf = Callable[[Setting], Constants]


def present_constants(setting: Setting) -> Constants:
    return Constants(setting.cluster.efficiency, setting.implementation, setting.scale)


class PricedRuns:
    """Runs that are priced again and again, those together that share all but the plan."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        self.runs = runs
        self.measured = np.array([run.step_seconds for run in runs])
        self._groups = [_Group([runs[index] for index in indices], indices) for indices in _setting_groups(runs)]

    @property
    def settings(self) -> list[Setting]:
        return [group.setting for group in self._groups]

    def step_seconds(self, constants_of: ConstantsOf = present_constants) -> NDArray[np.float64]:
        """Predicted seconds of every run, (n,)."""
        seconds = np.zeros(len(self.runs))
        for group in self._groups:
            seconds[group.indices] = group.step_seconds(constants_of(group.setting))
        return seconds

    def log_ratios(self, constants_of: ConstantsOf = present_constants) -> NDArray[np.float64]:
        """Log of predicted over measured, (n,): being half as fast weighs as much as being twice as fast."""
        return np.log(self.step_seconds(constants_of) / self.measured)


class _Group:
    """Runs of one setting."""

    def __init__(self, runs: Sequence[MeasuredRun], indices: list[int]) -> None:
        self.indices = indices
        self.setting = setting_of(runs[0].setup, runs[0].implementation)
        plans = [plan_of(run.setup) for run in runs]
        columns = {field.name: np.concatenate([getattr(plan, field.name) for plan in plans]) for field in fields(Plans)}
        self._plans = Plans(**columns)
        # The vectorised cost model spreads layers evenly; where they are listed, the run is alone in its group.
        self._stages = (
            spread_stages(self._plans, self.setting.model.num_layers)
            if runs[0].setup.parallel.layers_per_stage is None
            else listed_stages(runs[0].setup.layers_per_stage)
        )
        self._last: tuple[Constants, NDArray[np.float64]] | None = None

    def step_seconds(self, constants: Constants) -> NDArray[np.float64]:
        if self._last is None or self._last[0] != constants:
            self._last = constants, self._price(constants)
        return self._last[1]

    def _price(self, constants: Constants) -> NDArray[np.float64]:
        cluster = self.setting.cluster.model_copy(update={"efficiency": constants.efficiency})
        kind, scale = constants.implementation, constants.scale
        setting = replace(self.setting, cluster=cluster, implementation=kind, scale=scale)
        step = step_columns(priced_stages(setting, self._plans, work_of(setting, self._plans), self._stages))
        return np.broadcast_to(np.asarray(step.total_seconds, dtype=np.float64), (len(self.indices),))


def _setting_groups(runs: Sequence[MeasuredRun]) -> list[list[int]]:
    """Indices of the runs that differ in their plans alone."""
    groups: dict[object, list[int]] = {}
    for index, run in enumerate(runs):
        setting, alone = setting_of(run.setup, run.implementation), run.setup.parallel.layers_per_stage
        cluster = run.setup.cluster
        shared = [getattr(setting, field.name) for field in fields(Setting) if field.name != "cluster"]
        # How many nodes the cluster has is not asked: what a run costs depends on how many its ranks fill.
        key = (*shared, cluster.name, cluster.devices_per_node, index if alone else None)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


NUM_RUNS = 5
NOISE = 0.01
"""Assumed: what is left of a measured step, as a share, once all constants are right."""


def telling_runs(cluster: ClusterSpec, trials: Sequence[FinishedTrial]) -> list[int]:
    """Indices of the trials to measure first, the most telling one first; their measured times are not looked at."""
    ratios = _ratios_of(priced_runs(cluster, trials), np.ones(len(trials), dtype=bool))
    return most_telling(slopes(ratios, CONSTANTS, present_values(cluster.efficiency)))


def most_telling(slope: Floats, count: int = NUM_RUNS) -> list[int]:
    """Indices of `count` rows, or of all where there are fewer.

    Args:
        slope: how the logarithm of each predicted step changes with a spread of each constant, (n, constants).
    """
    chosen: list[int] = []
    covariance = slope @ slope.T  # covariance of the logarithms of the steps, (n, n)
    for _ in range(min(count, len(slope))):
        unknown = np.diag(covariance).copy()
        unknown[chosen] = -1.0  # below every variance, so that no run is chosen twice
        best = int(np.argmax(unknown))
        chosen.append(best)
        # A measured step settles one combination of the constants: all others are conditioned on it, as Gaussians are.
        covariance = covariance - np.outer(covariance[:, best], covariance[best]) / (covariance[best, best] + NOISE**2)
    return chosen
