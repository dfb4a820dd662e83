"""Make the trials of a sweep: estimate every point on paper, and choose those worth measuring."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from conf.errors import ConfigError, InfeasiblePlan, UsageError
from conf.experiment import Experiment
from conf.load import Composition, Tree, compose, part_at, settings_of, value_at, with_values
from conf.overrides import Overrides
from conf.schema import Value
from conf.settings import Settings
from conf.sweep_spec import PointSet, ProxySpec, SweepSpec
from conf.units import GIBIBYTE
from sweeps.axes import Point
from sweeps.planner.points import planned_points
from sweeps.planner.request import KNOB_KEYS, request
from sweeps.points import baseline_of, expand
from sweeps.trial import SweepRecord, Trial
from train_core.costs import IMPLEMENTATIONS, Estimate, estimate

ADAPTIVE = frozenset({"bayes"})
"""Kinds of search that choose one point after another: the baseline is planned, and the others are asked for later."""

MEMORY_MARGIN = 1.1
"""The share of a device's memory up to which a plan is tried if a search asks for it: predictions may be too high."""

JOB_GROUPS = frozenset({"sweep", "slurm", "tracking", "output_dir", "budget", "controller", "launcher", "notify"})
"""Overrides in these groups name the sweep or say how its jobs are requested. They do not change what is measured."""


def plan_sweep(asked: Composition, *, proxy: bool, git_sha: str) -> SweepRecord:
    """The whole sweep before it runs.

    Args:
        asked: the configuration, with the choice of a sweep in it.
        proxy: measure the sweep's stand-in instead of the full-size points, which are then predicted only.

    Raises:
        ConfigError: the configuration is wrong.
        UsageError: no sweep was named, or `proxy` was asked of a sweep that has none.
    """
    settings = asked.settings
    spec = _sweep_of(settings)
    pinned = {key: value_at(asked.tree, key) for key in asked.overrides.pinned()}
    if settings.search.kind == "planner":
        plan = _planned_trials(asked, spec, spec.max_trials)
    elif settings.search.kind in ADAPTIVE:
        plan = _baseline_alone(asked.tree, spec)
    else:
        plan = make_trials(asked.tree, spec, pinned, spec.max_trials)
    return SweepRecord(
        name=spec.name,
        mode="proxy" if proxy else "cluster",
        spec=spec,
        tracking=settings.tracking.without_credentials(),
        overrides=asked.overrides.without(JOB_GROUPS).texts,
        git_sha=git_sha,
        created=time.time(),
        plan=plan,
        trials=_proxy_trials(spec, asked, pinned) if proxy else plan,
    )


def make_trials(
    tree: Tree, points: PointSet, pinned: Mapping[str, Value], max_trials: int | None = None
) -> tuple[Trial, ...]:
    """One trial for every point, in order; at most `max_trials` of those that fit are selected."""
    drafts = [_draft(tree, point) for point in expand(points, tree, pinned)]
    baseline = _draft(tree, baseline_of(points, tree))
    # Different points may come to the same experiment, such as one that names a default and one that does not.
    distinct = {draft.trial_id: draft for draft in drafts}
    named = [
        draft.model_copy(update={"is_baseline": draft.trial_id == baseline.trial_id}) for draft in distinct.values()
    ]
    return _selected(named, max_trials)


def trial_of(tree: Tree, point: Point, because: str) -> Trial:
    """The trial of a point that a search proposes; one that cannot exist or does not fit is a row with its reason.

    Raises:
        ConfigError: the point names a key that the configuration does not have.
    """
    draft = _draft(tree, point)
    # A search may have learned that plans need less memory than predicted, so what nearly fits on paper is tried.
    reason = None if nearly_fits(draft) else draft.infeasible_reason
    return draft.model_copy(update={"selected": reason is None, "infeasible_reason": reason, "chosen_because": because})


def nearly_fits(trial: Trial) -> bool:
    """Whether its memory is at most a little more than the device's, on paper."""
    predicted = trial.estimate
    return predicted is not None and predicted.peak_memory_bytes <= MEMORY_MARGIN * predicted.memory_capacity_bytes


def _baseline_alone(tree: Tree, points: PointSet) -> tuple[Trial, ...]:
    """The baseline, selected if it can run."""
    draft = _draft(tree, baseline_of(points, tree))
    return _selected([draft.model_copy(update={"is_baseline": True})], None)


def _planned_trials(asked: Composition, points: PointSet, max_trials: int | None = None) -> tuple[Trial, ...]:
    """The baseline, and what the planner chooses for the devices that the sweep asks for."""
    costs_of = str(value_at(asked.tree, "trainer.costs_of") or "trisweep")
    wanted = request(asked, implementation=costs_of)
    # A pinned list of layers suits the stages of the planned points; the baseline may have another number of stages.
    spread = {"parallel.layers_per_stage": None}
    baseline = _draft(asked.tree, {**spread, **baseline_of(points, asked.tree)}).model_copy(
        update={"is_baseline": True}
    )
    trials = {baseline.trial_id: baseline}
    for chosen in planned_points(wanted.spaces[0], wanted.settings, wanted.settings.search):
        trial = _draft(asked.tree, chosen.values())
        # The planner may choose the baseline as well, which then stays one trial with both marks.
        trials[trial.trial_id] = trials.get(trial.trial_id, trial).model_copy(update={"chosen_because": chosen.because})
    return _selected(list(trials.values()), max_trials)


def _proxy_trials(spec: SweepSpec, asked: Composition, pinned: Point) -> tuple[Trial, ...]:
    """The stand-in's trials.

    An override of the user restricts them where they vary that key and measure that value; another key is the full
    model's, and does not concern them.
    """
    if spec.proxy is None:
        raise UsageError(
            f"Sweep {spec.name} has no proxy to measure on this machine",
            "Choose a Slurm cluster with cluster=NAME, or give the sweep a `proxy` section.",
        )
    proxy = compose(_proxy_overrides(spec.proxy, asked.overrides))
    if value_at(proxy.tree, "search.kind") == "planner":
        return _planned_trials(proxy_composition(spec.proxy, asked), spec.proxy)
    tree = proxy.tree
    if value_at(tree, "search.kind") in ADAPTIVE:
        return _baseline_alone(tree, spec.proxy)
    # Beside the axes, a key varies that any single point sets: between that value and the one of the proxy itself.
    varied = {
        key: set[Value]() if key in spec.proxy.axes else {value_at(tree, key)} for key, _ in spec.proxy.listed_values()
    }
    for key, value in spec.proxy.listed_values():
        varied[key].add(value)
    restricting = {key: value for key, value in pinned.items() if key in varied}
    for key, value in restricting.items():
        if value not in varied[key] and not spec.proxy.is_open(key, value):
            known = ", ".join(sorted(map(str, varied[key])))
            raise ConfigError(
                key,
                value,
                f"is not a value that the proxy of sweep {spec.name} measures",
                f"Use one of {known}, or choose a Slurm cluster with cluster=NAME to measure the full size.",
            )
    return make_trials(tree, spec.proxy, restricting)


def proxy_composition(proxy: ProxySpec, asked: Composition) -> Composition:
    """The stand-in's configuration, in which the knobs that the user pinned are pinned too."""
    return _with_knobs(compose(_proxy_overrides(proxy, asked.overrides)), asked)


def _proxy_overrides(proxy: ProxySpec, overrides: Overrides) -> Overrides:
    """The proxy's own overrides, and those of the user's that touch no group which the proxy chooses itself."""
    own = Overrides.parse(proxy.overrides)
    return own + overrides.without({override.group for override in own} | {"slurm", "device", "mixed"})


def _with_knobs(proxy: Composition, asked: Composition) -> Composition:
    """The proxy's configuration, in which the knobs that the user pinned are pinned too."""
    knobs = Overrides(tuple(override for override in asked.overrides if override.key in KNOB_KEYS))
    values = {key: part_at(asked.tree, key) for key in knobs.pinned()}
    return Composition(proxy.overrides + knobs, with_values(proxy.tree, values))


def _sweep_of(settings: Settings) -> SweepSpec:
    if settings.sweep is None:
        raise UsageError("No sweep was named", "Give one, such as `trisweep plan 175b`.")
    return settings.sweep


def _draft(tree: Tree, point: Point) -> Trial:
    """The trial of one point, not yet selected."""
    try:
        experiment = settings_of(with_values(tree, point)).experiment()
    except InfeasiblePlan as reason:
        # Such a point is a row with its reason. A grid has many of them, and one must not stop the sweep.
        return _trial(_name_of(point), point, None, None, str(reason))
    predicted = estimate(experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])
    # The fingerprint gives a changed configuration a folder of its own, so that earlier results stay.
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
    # The baseline comes before all others, as nothing can be compared if max_trials leaves it out.
    ranked = sorted(runnable, key=lambda trial: (not trial.is_baseline, -_predicted_rate(trial)))
    chosen = {trial.trial_id for trial in ranked[:max_trials]}
    return tuple(trial.model_copy(update={"selected": trial.trial_id in chosen}) for trial in trials)


def _predicted_rate(trial: Trial) -> float:
    assert trial.estimate is not None
    return trial.estimate.model_flops_per_second_per_device
