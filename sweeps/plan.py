"""Make the trials of a sweep: estimate every point on paper, and choose those worth measuring."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from conf.errors import ConfigError, InfeasiblePlan, UsageError
from conf.experiment import Experiment
from conf.load import Tree, compose_tree, settings_of, value_at, with_values
from conf.schema import PointSet, ProxySpec, SweepSpec, Value
from conf.settings import Settings
from conf.units import GIBIBYTE
from sweeps.planner.points import planned_points
from sweeps.planner.request import KNOB_KEYS, request
from sweeps.points import Point, expand
from sweeps.trial import SweepRecord, Trial
from train_core.costs import Estimate, estimate

JOB_GROUPS = frozenset({"sweep", "slurm", "tracking", "output_dir"})
"""Overrides of these name the sweep or say how its jobs are asked for, not what is planned and measured."""


def plan_sweep(overrides: Sequence[str], *, proxy: bool, git_sha: str) -> SweepRecord:
    """The whole sweep before it runs.

    Args:
        overrides: Hydra overrides, `sweep=NAME` among them.
        proxy: measure the sweep's stand-in instead of the full-size points, which are then predicted only.

    Raises:
        ConfigError: the configuration is wrong, or no sweep was named.
        UsageError: `proxy` was asked of a sweep that has none.
    """
    tree = compose_tree(overrides)
    settings = settings_of(tree)
    spec = _sweep_of(settings)
    pinned = _pinned(overrides, tree)
    if settings.search.kind == "planner":
        plan = _planned_trials(tree, spec, overrides, spec.max_trials)
    else:
        plan = make_trials(tree, spec, pinned, spec.max_trials)
    trials = _proxy_trials(spec, overrides, pinned) if proxy else plan
    return SweepRecord(
        name=spec.name,
        mode="proxy" if proxy else "cluster",
        spec=spec,
        tracking=settings.tracking,
        overrides=tuple(override for override in overrides if _group(override) not in JOB_GROUPS),
        git_sha=git_sha,
        created=time.time(),
        plan=plan,
        trials=trials,
    )


def make_trials(
    tree: Tree, points: PointSet, pinned: Mapping[str, Value], max_trials: int | None = None
) -> tuple[Trial, ...]:
    """One trial for every point, in order; at most `max_trials` of those that fit are selected."""
    base = {key: value_at(tree, key) for key in pinned}
    drafts = [_draft(tree, point) for point in expand(points, base, pinned)]
    baseline = _draft(tree, dict(points.baseline))
    distinct = {draft.trial_id: draft for draft in drafts}
    named = [
        draft.model_copy(update={"is_baseline": draft.trial_id == baseline.trial_id}) for draft in distinct.values()
    ]
    return _selected(named, max_trials)


def _planned_trials(
    tree: Tree, points: PointSet, overrides: Sequence[str], max_trials: int | None = None
) -> tuple[Trial, ...]:
    """The baseline and what the planner chooses, on as many devices as any point of the sweep uses."""
    asked = request(overrides)
    chosen = planned_points(asked.spaces[0], asked.settings, asked.settings.search)
    spread = {"parallel.layers_per_stage": None}  # a list that is pinned is of the planner's number of stages
    baseline = _draft(tree, {**spread, **points.baseline}).model_copy(update={"is_baseline": True})
    trials = {baseline.trial_id: baseline}
    for one in chosen:
        trial = _draft(tree, one.values())
        trials[trial.trial_id] = trials.get(trial.trial_id, trial).model_copy(update={"chosen_because": one.because})
    return _selected(list(trials.values()), max_trials)


def _proxy_trials(spec: SweepSpec, overrides: Sequence[str], pinned: Point) -> tuple[Trial, ...]:
    """The stand-in's trials. A user's override restricts them where they vary that key and know that value."""
    if spec.proxy is None:
        raise UsageError(
            f"Sweep {spec.name} has no proxy to measure on this machine",
            "Choose a Slurm cluster with cluster=NAME, or give the sweep a `proxy` section.",
        )
    of_proxy = _proxy_overrides(spec.proxy, overrides)
    tree = compose_tree(of_proxy)
    if value_at(tree, "search.kind") == "planner":
        knobs = [override for override in overrides if _key(override) in KNOB_KEYS]
        return _planned_trials(tree, spec.proxy, [*of_proxy, *knobs])
    varied: dict[str, set[Value]] = {key: set(values) for key, values in spec.proxy.axes.items()}
    for point in (spec.proxy.baseline, *spec.proxy.points):
        for key, value in point.items():
            varied.setdefault(key, {value_at(tree, key)}).add(value)
    restricting = {key: value for key, value in pinned.items() if key in varied}
    for key, value in restricting.items():
        if value not in varied[key]:
            known = ", ".join(str(one) for one in sorted(varied[key], key=str))
            raise ConfigError(
                key,
                value,
                f"is no value that the proxy of sweep {spec.name} measures",
                f"Use one of {known}, or choose a Slurm cluster with cluster=NAME to measure the full size.",
            )
    return make_trials(tree, spec.proxy, restricting)


def _proxy_overrides(proxy: ProxySpec, overrides: Sequence[str]) -> list[str]:
    """The sweep's own overrides, and the user's that are not about a group which the proxy chooses itself."""
    claimed = {_group(override) for override in proxy.overrides} | {"slurm", "device"}
    return [*proxy.overrides, *(override for override in overrides if _group(override) not in claimed)]


def _sweep_of(settings: Settings) -> SweepSpec:
    if settings.sweep is None:
        raise UsageError("No sweep was named", "Give one, such as `trisweep plan 175b`.")
    return settings.sweep


def _key(override: str) -> str:
    return override.lstrip("+~").split("=", 1)[0]


def _group(override: str) -> str:
    return re.split("[.@]", _key(override), maxsplit=1)[0]


def _pinned(overrides: Sequence[str], tree: Tree) -> Point:
    """Values of the dotted keys that the user overrode, as composed."""
    return {key: value_at(tree, key) for override in overrides if "." in (key := _key(override))}


def _draft(tree: Tree, point: Point) -> Trial:
    """The trial of one point, not yet selected."""
    try:
        experiment = settings_of(with_values(tree, point)).experiment()
    except InfeasiblePlan as reason:
        return _trial(_name_of(point), point, None, None, str(reason))
    predicted = estimate(experiment)
    name = f"{experiment.label}-{experiment.fingerprint[:6]}"
    return _trial(name, point, experiment, predicted, None if predicted.fits else _shortfall(predicted))


def _trial(
    trial_id: str, point: Point, experiment: Experiment | None, predicted: Estimate | None, reason: str | None
) -> Trial:
    return Trial(
        trial_id=trial_id,
        point=point,
        experiment=experiment,
        estimate=predicted,
        infeasible_reason=reason,
        selected=False,
        is_baseline=False,
    )


def _name_of(point: Point) -> str:
    """A folder-safe name for a point that is no experiment."""
    parts = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in point.items()]
    return "infeasible-" + "-".join(parts).replace("/", "_")


def _shortfall(predicted: Estimate) -> str:
    return (
        f"does not fit: stage {predicted.worst_stage} needs {predicted.peak_memory_bytes / GIBIBYTE:.1f} GiB of"
        f" {predicted.memory_capacity_bytes / GIBIBYTE:.1f} GiB per device,"
        f" {predicted.shortfall_bytes / GIBIBYTE:.1f} GiB short"
    )


def _selected(trials: Sequence[Trial], max_trials: int | None) -> tuple[Trial, ...]:
    """The trials, in order, with the baseline and the best predicted model FLOP/s per device selected."""
    runnable = [trial for trial in trials if trial.infeasible_reason is None and trial.estimate is not None]
    ranked = sorted(runnable, key=lambda trial: (not trial.is_baseline, -_predicted_rate(trial)))
    chosen = {trial.trial_id for trial in ranked[:max_trials]}
    return tuple(trial.model_copy(update={"selected": trial.trial_id in chosen}) for trial in trials)


def _predicted_rate(trial: Trial) -> float:
    assert trial.estimate is not None
    return trial.estimate.model_flops_per_second_per_device
