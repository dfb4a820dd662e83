"""The trials of a sweep as points: what each knob was set to, and the rate that came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Literal, TypeAlias

from conf.plan.experiment import Experiment
from conf.plan.knobs import KNOB, KNOBS
from conf.types.schema import Value
from sweeps.labels import dotted_value
from sweeps.ranking.disturbed import disturbances
from sweeps.reading import TrialReading
from sweeps.trial import Trial
from train_core.trial.measurement import Outcome

RatesAre = Literal["measured", "predicted"]
Set: TypeAlias = str | int | float | bool | None
RatedTrial: TypeAlias = tuple[Trial, Experiment, float | None]
DERIVED_KNOBS = ("data_parallel_size", "layers_per_stage")
"""Follows from the other sizes, or has a value for every stage."""
PLAN_KNOBS = tuple(knob.name for knob in KNOBS if knob.name not in DERIVED_KNOBS)
WORDS = {knob.name: knob.words for knob in KNOBS if knob.words} | {"num_micro_batches": "micro-batches per step"}
"""What people call a knob; the others are called by their name in the configuration."""


@dataclass(frozen=True)
class KnobPoint:
    """One trial.

    Attributes:
        rate: model FLOP/s per device; None where it ran out of memory, or does not fit on paper.
    """

    settings: Mapping[str, Set]
    rate: float | None


@dataclass(frozen=True)
class KnobColumn:
    """A knob that varies, its values in order, and others that no trial tells apart from it."""

    name: str
    values: tuple[Set, ...]
    together_with: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        others = f" (with {', '.join(map(knob_words, self.together_with))})" if self.together_with else ""
        return knob_words(self.name) + others

    def code(self, value: Set) -> int:
        """A value by its place in their order, which is all that a tree asks for."""
        return self.values.index(value)


@dataclass(frozen=True)
class KnobTable:
    """Points whose rates are all of one kind, and the number of trials that failed or are still to run."""

    rates_are: RatesAre
    points: tuple[KnobPoint, ...]
    num_others: int = 0

    @cached_property
    def rated_points(self) -> tuple[KnobPoint, ...]:
        return tuple(point for point in self.points if point.rate is not None)

    @cached_property
    def columns(self) -> tuple[KnobColumn, ...]:
        """The knobs that vary over the points with a rate, those that always change together as one."""
        return columns_of(self.rated_points)


def measured_table(results: Sequence[TrialReading]) -> KnobTable:
    """Return the table of what the trials of a sweep measured, and of those that ran out of memory."""
    disturbed = disturbances(results)
    known: list[RatedTrial] = []
    for result in results:
        rate = result.performance.model_flops_per_second_per_device if result.performance else None
        is_known = rate is not None or result.outcome is Outcome.OUT_OF_MEMORY
        # A knob must not seem to do what something else on the machine did.
        if is_known and result.experiment is not None and result.trial.trial_id not in disturbed:
            known.append((result.trial, result.experiment, rate))
    started = sum(result.outcome not in (None, Outcome.INFEASIBLE) for result in results)
    return KnobTable("measured", _points_of(known, [result.trial for result in results]), started - len(known))


def predicted_table(trials: Sequence[Trial]) -> KnobTable:
    """Return the table of what is predicted of points; those that do not fit have no rate."""
    known = [
        (each, each.experiment, None if each.infeasible_reason else each.estimate.model_flops_per_second_per_device)
        for each in trials
        if each.experiment is not None and each.estimate is not None
    ]
    return KnobTable("predicted", _points_of(known, trials))


def _points_of(known: Sequence[RatedTrial], trials: Sequence[Trial]) -> tuple[KnobPoint, ...]:
    """The points without a baseline that is none of the axes' points: a value that it alone has is no knob's doing."""
    keys = _other_keys(trials)
    points = [KnobPoint(settings_of(experiment, trial.point, keys), rate) for trial, experiment, rate in known]
    # Of settings and not of runs: a baseline that is measured again is still alone with its values.
    distinct = {frozenset(point.settings.items()) for point in points}
    counts = Counter(item for settings in distinct for item in settings)
    baselines = [point.settings for (trial, _, _), point in zip(known, points, strict=True) if trial.is_baseline]
    outside = [settings for settings in baselines if any(counts[item] == 1 for item in settings.items())]
    return tuple(point for point in points if point.settings not in outside)


def settings_of(experiment: Experiment, point: Mapping[str, Value], other_keys: Iterable[str]) -> dict[str, Set]:
    """Every knob of the plan, and the values of these keys: the point's own, else those that it was run with."""
    values = {name: experiment.knob_value(name) for name in PLAN_KNOBS}
    settings = {name: value if isinstance(value, str | int | float) else None for name, value in values.items()}
    settings["num_micro_batches"] = experiment.num_micro_batches
    return settings | {key: point[key] if key in point else dotted_value(experiment, key) for key in other_keys}


def _other_keys(trials: Iterable[Trial]) -> list[str]:
    """What any point sets beside the knobs of a plan: blocks of axes, and axes on conditions, set different keys."""
    known = (*PLAN_KNOBS, "num_micro_batches", *DERIVED_KNOBS)
    return [
        key
        for key in dict.fromkeys(chain.from_iterable(each.point for each in trials))
        if key.rsplit(".", 1)[-1] not in known
    ]


def columns_of(points: Sequence[KnobPoint]) -> tuple[KnobColumn, ...]:
    columns: dict[tuple[int, ...], KnobColumn] = {}
    for name in _varied_names(points):
        settings = [point.settings[name] for point in points]
        order = KNOB[name].values if name in KNOB else ()
        column = KnobColumn(name, tuple(sorted(set(settings), key=lambda value: _place(value, order))))
        # Two knobs that change together have one pattern of which points share a value.
        first_seen: dict[Set, int] = {}
        pattern = tuple(first_seen.setdefault(value, len(first_seen)) for value in settings)
        first = columns.get(pattern)
        columns[pattern] = replace(first, together_with=(*first.together_with, name)) if first else column
    return tuple(columns.values())


def knob_words(name: str) -> str:
    return WORDS.get(name) or name.rsplit(".", 1)[-1].replace("_", " ")


def setting_text(value: Set) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _varied_names(points: Sequence[KnobPoint]) -> list[str]:
    names = points[0].settings if points else {}
    distinct = {name: len({point.settings.get(name) for point in points}) for name in names}
    # The size of a batch and the number of its micro-batches follow from each other; the one that the sweep chose among
    # few values is the knob, and the other has a value for almost every layout.
    batches = sorted(name for name in ("global_batch_size", "num_micro_batches") if distinct.get(name, 0) > 1)
    left_out = max(batches, key=lambda name: distinct[name]) if len(batches) > 1 else None
    if distinct.get("global_batch_size") == 1:
        left_out = "num_micro_batches"
    return [name for name in names if distinct[name] > 1 and name != left_out]


def _place(value: Set, order: Sequence[object]) -> tuple[int, float, str]:
    if value in order:
        return 0, order.index(value), ""
    if isinstance(value, int | float):
        return 1, float(value), ""
    return 2, 0.0, setting_text(value)
