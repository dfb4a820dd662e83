"""Make the trials of a sweep: estimate every point on paper, and choose those worth measuring.

Where nobody has said how many devices a sweep takes, it takes as many as its layouts and its batch divide.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from conf.compose.complaints import validate
from conf.compose.load import Composition, compose, settings_of
from conf.compose.settings import MOST_BYTES_OF_NAME, Settings
from conf.compose.tree import Tree, part_at, value_at, with_values
from conf.credentials import overrides_for_records
from conf.errors import ConfigError, InfeasiblePlan, UsageError
from conf.overrides import Overrides
from conf.plan.experiment import Experiment
from conf.plan.knobs import LAYOUT_KEYS
from conf.types.cluster_spec import ClusterSpec
from conf.types.schema import Value
from conf.types.sweep_spec import PointSet, ProxySpec, SweepSpec, is_of_time
from conf.units import GIBIBYTE
from costs import IMPLEMENTATIONS, Estimate, estimates
from sweeps.labels import LONGEST_IN_FOLDER, name_of_point
from sweeps.planner.points import planned_points
from sweeps.planner.request import KNOB_KEYS, search_request, searched_size
from sweeps.points.axes import (
    MODEL_PARALLEL,
    NUM_STEPS,
    Point,
    baseline_of,
    budgeted_steps,
    every_point,
    expand,
    require_last_step_evaluated,
    require_whole_step,
    stated_points,
    value_in,
)
from sweeps.points.objectives import require_comparable
from sweeps.trial import FEWEST_DIGITS, JOB_GROUPS, SweepRecord, Trial, named_apart, repeat_id
from train_core.trial.measurement import SET_LOSS

OF_LAYOUTS = frozenset({"model", "cluster", "parallel", "batch", "precision", "trainer"})
"""The groups on which depends which layout is the best."""
WORLD_SIZE, BATCH = "parallel.world_size", "batch.global_batch_size"
MEMORY_MARGIN = 1.1
"""The share of a device's memory up to which a plan is tried if a search asks for it: predictions may be too high."""


def plan_sweep(asked: Composition, *, proxy: bool, git_sha: str) -> SweepRecord:
    """The whole sweep before it runs; with `proxy` its stand-in is measured, and full-size points are predicted only.

    Raises:
        ConfigError: the configuration is wrong.
        UsageError: no sweep was named, or `proxy` was asked of a sweep that has none.
    """
    settings, spec = asked.settings, asked.settings.sweep
    if spec is None:
        raise UsageError("No sweep was named", "Give one, such as `trisweep plan 175b`.")
    plan = _trials_of(part_of(asked, spec, proxy=False), spec.max_trials)
    # The whole of a sweep without a file is overrides, which its journal keeps; the record has what they come to.
    own = asked.overrides.of({"cluster"}) if asked.overrides.is_without_file else asked.overrides.without(JOB_GROUPS)
    return SweepRecord(
        name=spec.name,
        mode="proxy" if proxy else "cluster",
        spec=spec,
        tracking=settings.tracking.without_credentials(),
        overrides=overrides_for_records(own.texts),
        objective=settings.search.objective,
        git_sha=git_sha,
        created=time.time(),
        plan=plan,
        trials=_trials_of(part_of(asked, spec, proxy=True)) if proxy else plan,
    )


def fixed_by(trial: Trial, asked: Composition) -> Point:
    """What a search for the best plan at this point is to take as the point has it, where it would not by itself."""
    size = {WORLD_SIZE: trial.planned.parallel.world_size}
    given = {key: value for key, value in trial.point.items() if key not in KNOB_KEYS} | size
    own = {key: value for key, value in given.items() if key.partition(".")[0] in OF_LAYOUTS}
    known = {key: value_at(asked.tree, key) for key in own}
    known[WORLD_SIZE] = searched_size(trial.planned.cluster, asked.settings, asked.overrides)
    return {key: value for key, value in own.items() if value != known[key]}


def fixed_by_points(asked: Composition) -> list[Point]:
    """The same of all points of a sweep that can exist, each once; the largest last, by its devices and its batch."""
    spec = asked.settings.sweep
    if spec is None or asked.settings.search.kind == "planner":
        return []
    try:
        trials = [each for each in _trials_of(part_of(asked, spec, proxy=False)) if each.experiment]
    except ConfigError:  # what is asked is no point of the sweep's
        return []
    in_order = sorted(trials, key=lambda each: (each.planned.parallel.world_size, each.planned.batch.global_batch_size))
    found = [fixed_by(each, asked) for each in in_order]
    return [point for number, point in enumerate(found) if point not in found[number + 1 :]]


@dataclass(frozen=True)
class SweepPart:
    """A half of a sweep: its full size, or its stand-in, with what the user overrode of the keys that it varies."""

    composition: Composition
    points: PointSet
    pinned: Point

    @property
    def tree(self) -> Tree:
        return self.composition.tree


def part_of(asked: Composition, spec: SweepSpec, *, proxy: bool) -> SweepPart:
    """The half of a sweep that is measured, or predicted.

    Raises:
        UsageError: the sweep has no stand-in.
        ConfigError: the stand-in does not measure what the user asks for.
    """
    pinned = {key: value_at(asked.tree, key) for key in asked.overrides.pinned_keys()}
    if proxy:
        return _proxy_part(spec, asked, pinned)
    return SweepPart(on_suiting_devices(asked, spec, whole_grid=asked.settings.search.kind == "grid"), spec, pinned)


def _trials_of(part: SweepPart, max_trials: int | None = None) -> tuple[Trial, ...]:
    """The trials that are known before any is measured; at most `max_trials` of them are selected."""
    pinned, search = part.composition.overrides.pinned_keys(), settings_of(part.tree).search
    require_comparable(search.objective, part.points, pinned, part.tree)
    match value_at(part.tree, "search.kind"):
        case "planner":
            return _planned_trials(part.composition, part.points, max_trials)
        case "grid":
            return make_trials(part.tree, part.points, part.pinned, max_trials)
    # The search asks for all others one after another.
    first = PointSet(baseline=part.points.baseline)
    return make_trials(part.tree, first, {}, max_trials) if stated_points(first, part.tree, part.pinned) else ()


def make_trials(
    tree: Tree, points: PointSet, pinned: Mapping[str, Value], max_trials: int | None = None
) -> tuple[Trial, ...]:
    """One trial for every point, in order; at most `max_trials` of those that fit are selected."""
    baseline = baseline_of(points, tree)
    drafts, declared = (
        _drafts(tree, expand(points, tree, pinned)),
        [] if baseline is None else _drafts(tree, [baseline]),
    )
    # Different points may come to the same experiment, such as one that names a default and one that does not.
    distinct = named_apart({draft.identity: draft for draft in drafts}.values())
    of_baseline = {draft.identity for draft in declared}
    marked = [draft.model_copy(update={"is_baseline": draft.identity in of_baseline}) for draft in distinct]
    objective = part_at(tree, "search.objective")
    by_rate = any(map(is_of_time, [objective] if isinstance(objective, str) else objective))
    return _select(marked, max_trials, by_rate=by_rate)


def trial_of(tree: Tree, point: Point, because: str, *, expected_gain: float | None = None, repeat: int = 0) -> Trial:
    """The trial of a point that a search proposes; one that cannot exist or does not fit is a row with its reason.

    Args:
        expected_gain: see `Trial`.
        repeat: 1 for the second measurement of the same point, whose folder ends with `-r2`.

    Raises:
        ConfigError: the point names a key that the configuration does not have.
    """
    draft = _draft(tree, point)
    # A search may have learned that plans need less memory than predicted, so what nearly fits on paper is tried.
    reason = None if nearly_fits(draft) else draft.infeasible_reason
    name, chosen = repeat_id(draft.trial_id, repeat), {"chosen_because": because, "expected_gain": expected_gain}
    judged = {"selected": reason is None, "infeasible_reason": reason} | chosen
    return draft.model_copy(update=judged | {"trial_id": name, "repeat": repeat})


def nearly_fits(trial: Trial) -> bool:
    """True if its predicted memory is at most a little more than the device's."""
    predicted = trial.estimate
    return predicted is not None and predicted.peak_memory_bytes <= MEMORY_MARGIN * predicted.memory_capacity_bytes


def _planned_trials(asked: Composition, points: PointSet, max_trials: int | None) -> tuple[Trial, ...]:
    """The baseline, and what the planner chooses for the devices that the sweep asks for."""
    wanted = search_request(asked)
    # A pinned list of layers suits the stages of the planned points; the baseline may have another number of stages.
    spread = {"parallel.layers_per_stage": None, **wanted.padding}
    declared, trials = baseline_of(points, asked.tree), dict[tuple[str, int], Trial]()
    if declared is not None:
        baseline = _draft(asked.tree, {**spread, **declared}).model_copy(update={"is_baseline": True})
        trials[baseline.identity] = baseline
    for chosen in planned_points(wanted.spaces[0], wanted.settings, wanted.settings.search):
        trial = _draft(asked.tree, {**wanted.padding, **chosen.values()})
        # The planner may choose the baseline as well, which then stays one trial with both marks.
        trials[trial.identity] = trials.get(trial.identity, trial).model_copy(update={"chosen_because": chosen.because})
    return _select(list(named_apart(trials.values())), max_trials)


def _proxy_part(spec: SweepSpec, asked: Composition, pinned: Point) -> SweepPart:
    """The stand-in.

    An override of the user restricts its trials where they vary that key and measure that value; another key is the
    full model's, and does not concern them.
    """
    if spec.proxy is None:
        problem = f"Sweep {spec.name} has no proxy to measure on this machine"
        raise UsageError(problem, "Choose a Slurm cluster with cluster=NAME, or give the sweep a `proxy` section.")
    proxy = compose(_proxy_overrides(spec.proxy, asked.overrides))
    if chooses_layouts(proxy.settings, spec.proxy):
        return SweepPart(_with_knobs(proxy, asked), spec.proxy, {})
    tree = proxy.tree
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
            remedy = f"Use one of {known}, or choose a Slurm cluster with cluster=NAME to measure the full size."
            raise ConfigError(key, value, f"is not a value that the proxy of sweep {spec.name} measures", remedy)
    return SweepPart(proxy, spec.proxy, restricting)


def chooses_layouts(settings: Settings, points: PointSet) -> bool:
    """True if the search chooses among all layouts by itself, so that what the user pins narrows its choice."""
    kind = settings.search.kind
    return kind == "planner" or (kind == "bayes" and points.varied_keys <= LAYOUT_KEYS)


def _proxy_overrides(proxy: ProxySpec, overrides: Overrides) -> Overrides:
    """The proxy's own overrides, and those of the user's that touch no group which the proxy chooses itself.

    How it is trained is no matter of size: what the user says of that goes before what the proxy says.
    """
    own = Overrides.parse(proxy.overrides)
    sized = {override.group for override in own} - {"training"}
    return own + overrides.without(sized | {"slurm", "device", "mixed"})


def _with_knobs(proxy: Composition, asked: Composition) -> Composition:
    """The proxy's configuration, in which the knobs that the user pinned are pinned too."""
    knobs = Overrides(tuple(override for override in asked.overrides if override.key in KNOB_KEYS))
    values = {key: part_at(asked.tree, key) for key in knobs.pinned_keys()}
    return replace(proxy, overrides=proxy.overrides + knobs, tree=with_values(proxy.tree, values))


def _draft(tree: Tree, point: Point) -> Trial:
    """The trial of one point, not yet selected."""
    return _drafts(tree, [point])[0]


def _drafts(tree: Tree, points: Sequence[Point]) -> list[Trial]:
    """The trials of the points, not yet selected; what can exist is priced together, which is much faster."""
    shared: dict[str, Any] = {}
    experiments = [_sharing(_experiment_or_reason(tree, point), shared) for point in points]
    possible = [each for each in experiments if not isinstance(each, str)]
    found = estimates([(each, IMPLEMENTATIONS[each.trainer.costs_of]) for each in possible])
    predicted = (_one_of_equals("estimate", each, shared) for each in found)
    return [
        Trial(trial_id=_name_of(point), point=point, infeasible_reason=each)
        if isinstance(each, str)
        else _named_trial(point, each, next(predicted))
        for point, each in zip(points, experiments, strict=True)
    ]


def _sharing(experiment: Experiment | str, last: dict[str, Any]) -> Experiment | str:
    """The experiment, whose groups are those of the one before where they are equal: there may be ten thousand."""
    if not isinstance(experiment, str):
        vars(experiment).update({name: _one_of_equals(name, group, last) for name, group in experiment})
    return experiment


def _one_of_equals(name: str, value: Any, last: dict[str, Any]) -> Any:
    """The last value of that name if it is equal, else this one, which is the last from now on."""
    if name not in last or last[name] != value:
        last[name] = value
    return last[name]


def _experiment_or_reason(tree: Tree, point: Point) -> Experiment | str:
    """Return the experiment of a point, or why it cannot exist, as one such point of a grid must not stop the sweep."""
    try:
        steps = budgeted_steps(tree, lambda key: value_in(key, point, tree))
        values = point if steps is None else {**point, NUM_STEPS: steps}
        # Without the sweep's own part, whose axes may list thousands of values, to be checked again for each point.
        experiment = settings_of(with_values(tree, values) | {"sweep": None}).experiment()
        require_whole_step(value_at(tree, "search.tokens"), experiment)
        if any(each == "loss" or SET_LOSS.search(each) for each in part_at(tree, "search.objective")):
            require_last_step_evaluated(experiment)
    except InfeasiblePlan as reason:
        return str(reason)
    return experiment


def _named_trial(point: Point, experiment: Experiment, predicted: Estimate) -> Trial:
    """The trial of an experiment; its fingerprint gives a changed configuration a folder, so earlier results stay."""
    parts = (experiment.label, name_of_point(point), experiment.fingerprint[:FEWEST_DIGITS])
    name = "-".join(filter(None, parts))
    reason = None if predicted.fits else _shortfall(predicted)
    return Trial(trial_id=name, point=point, experiment=experiment, estimate=predicted, infeasible_reason=reason)


def _name_of(point: Point) -> str:
    """A folder-safe name for a point that is no experiment; one that no file system takes is cut short."""
    parts = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in point.items()]
    name = ("infeasible-" + "-".join(parts).replace("/", "_")).encode()
    if len(name) <= MOST_BYTES_OF_NAME:
        return name.decode()
    digest = hashlib.sha256(name).hexdigest()[:FEWEST_DIGITS]
    return f"{name[:LONGEST_IN_FOLDER].decode(errors='ignore')}-{digest}"


def _shortfall(predicted: Estimate) -> str:
    return (
        f"does not fit: stage {predicted.worst_stage} needs {predicted.peak_memory_bytes / GIBIBYTE:.1f} GiB of"
        f" {predicted.memory_capacity_bytes / GIBIBYTE:.1f} GiB per device,"
        f" {predicted.shortfall_bytes / GIBIBYTE:.1f} GiB short"
    )


def _select(trials: Sequence[Trial], max_trials: int | None, *, by_rate: bool = True) -> tuple[Trial, ...]:
    """The trials, in order, with the baseline and the best predicted model FLOP/s per device selected.

    Args:
        by_rate: a time is sought. Else the first are selected of programs that know nothing of the model.
    """
    runnable = [trial for trial in trials if trial.infeasible_reason is None and trial.estimate is not None]

    def rate(trial: Trial) -> float:
        is_known = by_rate or trial.planned.trainer.knows_model
        return trial.predicted.model_flops_per_second_per_device if is_known else 0.0

    # The baseline comes before all others, as nothing can be compared if max_trials leaves it out.
    ranked = sorted(runnable, key=lambda trial: (not trial.is_baseline, -rate(trial)))
    chosen = {trial.identity for trial in ranked[:max_trials]}
    return tuple(trial.model_copy(update={"selected": trial.identity in chosen}) for trial in trials)


WORLD_SIZE = "parallel.world_size"
MOST_LOOKED_AT = 2_000
"""Points of a large grid that are enough to tell which number of devices suits it."""


def on_suiting_devices(asked: Composition, points: PointSet, *, whole_grid: bool) -> Composition:
    """The configuration with as many devices as suit most points; as it is where their number was asked for.

    A file that states a number keeps it wherever the cluster has so many. Points on the axes count only with the whole
    grid.
    """
    stated = value_at(asked.tree, WORLD_SIZE)
    if WORLD_SIZE in asked.overrides.pinned_keys() or asked.tree.get("mixed") is not None:
        return asked
    cluster = validate(ClusterSpec, asked.tree.get("cluster") or {}, "cluster.")
    if isinstance(stated, int) and cluster.can_give(stated):
        return asked
    most = min(stated, cluster.num_devices) if isinstance(stated, int) else cluster.num_devices
    pinned = {key: value_at(asked.tree, key) for key in asked.overrides.pinned_keys()}
    open_points = [
        point
        for point in islice(every_point(points, asked.tree, pinned, whole_grid=whole_grid), MOST_LOOKED_AT)
        if WORLD_SIZE not in point
    ]
    size = _largest_suiting(open_points, asked.tree, cluster, most)
    if size is None or size == stated or (stated is None and size == cluster.num_devices):
        return asked
    return replace(asked, tree=with_values(asked.tree, {WORLD_SIZE: size}))


def _largest_suiting(points: Sequence[Point], tree: Tree, cluster: ClusterSpec, most: int) -> int | None:
    """The largest number of devices, up to a bound, on which most points divide; None where none divides anywhere."""
    # A part of a node is no answer to somebody who has named a machine of many.
    step = cluster.devices_per_node if most >= cluster.devices_per_node and cluster.num_nodes > 1 else 1
    sizes = np.arange(step, most + 1, step)
    if not points or not len(sizes):
        return None
    suited = sum((_divides(point, tree, sizes).astype(int) for point in points), np.zeros(len(sizes), int))
    return int(sizes[suited == suited.max()][-1]) if suited.max() else None


def _divides(point: Point, tree: Tree, sizes: npt.NDArray[np.int_]) -> npt.NDArray[np.bool_]:
    """Mark the numbers of devices of which the layout leaves no device over and the batch no sequence."""

    def at(key: str) -> int:
        value = point.get(key, value_at(tree, key))
        return value if isinstance(value, int) and value > 0 else 1

    model_parallel = int(np.prod([at(name) for name in MODEL_PARALLEL]))
    replicas = np.maximum(sizes // model_parallel, 1)
    fed = at("batch.global_batch_size") % (at("batch.micro_batch_size") * replicas) == 0
    return np.asarray((sizes % model_parallel == 0) & fed)
