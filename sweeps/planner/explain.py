"""Why a plan is as fast as it is: where its step goes, what binds, and what changing one knob would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from conf.errors import InfeasiblePlan
from conf.experiment import Parts
from conf.knobs import KNOB, KNOBS, KnobValue, layers_in_short
from conf.schema import ParallelPlan
from conf.units import GIBIBYTE
from sweeps.planner.space import SEARCHED_SCHEDULES, divisors, layer_ends
from sweeps.planner.strategy import Strategy, even_ends, spread_layers
from train_core.costs import Estimate, Implementation, estimate
from train_core.costs.trainers.capabilities import require_runnable
from train_core.costs.trainers.declared_limits import CAPABILITIES


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that differs from the explained one in one knob, and in what follows from that knob.

    Attributes:
        value: the knob's other value, for people.
        estimate: None where the plan cannot exist.
        reason: why it cannot exist, or by how much it does not fit; None where it can run.
        slower: share of the explained plan's step that it takes longer (negative: shorter); None where it cannot run.
    """

    knob: str
    value: str
    estimate: Estimate | None
    reason: str | None
    slower: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A plan taken apart.

    Attributes:
        label: its layout in short.
        reason: why it cannot exist, or by how much it does not fit; None where it can run.
        estimate: None where it cannot exist.
        terms: seconds of a step by term, the largest first.
        memory: bytes of the fullest stage by what they hold, the largest first.
        alternatives: one knob changed at a time: those that can run first, the fastest first.
    """

    label: str
    reason: str | None
    estimate: Estimate | None
    terms: dict[str, float]
    memory: dict[str, int]
    alternatives: tuple[Alternative, ...]

    @property
    def headroom_bytes(self) -> int:
        """What the fullest stage leaves free; negative where it does not fit."""
        assert self.estimate is not None
        return self.estimate.memory_capacity_bytes - self.estimate.peak_memory_bytes


def explain(strategy: Strategy, parts: Parts, implementation: Implementation) -> Explanation:
    """Take a plan apart, on the model, cluster and precision of `parts`.

    A plan that cannot exist is explained too: the reason is the explanation.
    """
    try:
        experiment = strategy.experiment(parts)
        require_runnable(experiment, implementation.name, CAPABILITIES[implementation.name])
    except InfeasiblePlan as error:
        return Explanation(plain_label(strategy), str(error), None, {}, {}, ())
    predicted = estimate(experiment, implementation)
    alternatives = sorted(
        (
            _alternative(knob, changed, parts, implementation, predicted)
            for knob, changed in neighbours(strategy, parts)
        ),
        key=_order,
    )
    return Explanation(
        label=experiment.label,
        reason=shortfall(predicted),
        estimate=predicted,
        terms=_descending(predicted.step_terms.by_term()),
        memory=_descending(predicted.stages[predicted.worst_stage].by_kind()),
        alternatives=tuple(alternatives),
    )


def plain_label(strategy: Strategy) -> str:
    """A label for a plan that cannot exist, whose other sizes need not even be whole numbers."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "micro_batch_size")
    said = "-".join(KNOB[name].labelled(strategy.value_of(name)) for name in sizes)
    return f"{said} on {strategy.parallel.world_size} devices"


def shortfall(predicted: Estimate) -> str | None:
    """A sentence on how much memory a plan lacks and what takes most of it; None where the plan fits."""
    if predicted.fits:
        return None
    largest, size = next(iter(_descending(predicted.stages[predicted.worst_stage].by_kind()).items()))
    return (
        f"does not fit: stage {predicted.worst_stage} is {predicted.shortfall_bytes / GIBIBYTE:.1f} GiB short"
        f" ({largest.removesuffix('_bytes')} alone take {size / GIBIBYTE:.1f} GiB)"
    )


def _descending(values: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _order(alternative: Alternative) -> tuple[int, float]:
    """Sort first those that run, by speed, then those that do not fit, by what they lack, then the impossible ones."""
    if alternative.slower is not None:
        return (0, alternative.slower)
    return (1, float(alternative.estimate.shortfall_bytes)) if alternative.estimate else (2, 0.0)


def _alternative(
    knob: str, changed: Strategy, parts: Parts, implementation: Implementation, plan: Estimate
) -> Alternative:
    value = _shown(knob, changed)
    try:
        experiment = changed.experiment(parts)
        require_runnable(experiment, implementation.name, CAPABILITIES[implementation.name])
        predicted = estimate(experiment, implementation)
    except InfeasiblePlan as error:
        return Alternative(knob, value, None, f"{error.key} = {error.value}: {error.problem}", None)
    slower = predicted.step_seconds / plan.step_seconds - 1 if predicted.fits else None
    return Alternative(knob, value, predicted, shortfall(predicted), slower)


def _shown(knob: str, strategy: Strategy) -> str:
    value = strategy.value_of(knob)
    if isinstance(value, tuple):
        return layers_in_short(value)
    return "even" if value is None else str(value).lower()


def neighbours(strategy: Strategy, parts: Parts) -> Iterator[tuple[str, Strategy]]:
    """Plans with one knob at its next smaller or larger value, or at each of its other values.

    The data-parallel size follows from the others. Neighbours that cannot exist are yielded as well, since the reason
    why they cannot is part of the answer.
    """
    parallel, batch, d = strategy.parallel, strategy.batch, strategy.data_parallel_size
    t, p, num_layers = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parts.model.num_layers
    for size in _next_to(t, divisors(parallel.world_size // p)):
        yield "tensor_parallel_size", strategy.changed(tensor_parallel_size=size)
    for size in _next_to(p, divisors(parallel.world_size // t)):
        yield "pipeline_parallel_size", _with_stages(strategy, size, num_layers)
    for size in _next_to(batch.micro_batch_size, divisors(max(1, batch.global_batch_size // d))):
        yield "micro_batch_size", strategy.changed(micro_batch_size=size)
    # A schedule changes chunks and layers along with it, so `_other_pipelines` makes those neighbours.
    for knob in KNOBS:
        if knob.role == "searched" and knob.name != "schedule":
            for value in knob.values:
                if value != strategy.value_of(knob.name) and _says_something(knob.name, value, d):
                    yield knob.name, strategy.changed(**{knob.name: value})
    yield from _other_pipelines(strategy, num_layers)


def _says_something(knob: str, value: KnobValue, data_parallel_size: int) -> bool:
    """Whether another value changes anything: a single replica shares nothing out, whatever the ZeRO stage says."""
    return knob != "zero_stage" or data_parallel_size > 1 or value == KNOB[knob].plain


def _next_to(size: int, sizes: list[int]) -> list[int]:
    """The next smaller and the next larger of the sizes, which are ascending, where there is one."""
    smaller, larger = [other for other in sizes if other < size], [other for other in sizes if other > size]
    return smaller[-1:] + larger[:1]


def _with_stages(strategy: Strategy, num_stages: int, num_layers: int) -> Strategy:
    """The plan with another number of stages, spread evenly, and with no more chunks than before.

    Where only one chunk is left, nothing can be interleaved, and the schedule becomes 1F1B.
    """
    schedule = strategy.parallel.schedule
    whole = divisors(num_layers // num_stages) if num_layers % num_stages == 0 else [1]
    chunks = max((size for size in whole if size <= strategy.parallel.virtual_pipeline_size), default=1)
    changed = strategy.changed(pipeline_parallel_size=num_stages, layers_per_stage=None)
    if num_stages == 1 or (schedule == "interleaved" and chunks == 1):
        return changed.changed(schedule="1f1b", virtual_pipeline_size=1)
    return changed.changed(virtual_pipeline_size=chunks)


def _other_pipelines(strategy: Strategy, num_layers: int) -> Iterator[tuple[str, Strategy]]:
    """Plans with another schedule, another number of chunks or another spread of the layers."""
    parallel = strategy.parallel
    p, schedule = parallel.pipeline_parallel_size, parallel.schedule
    if p == 1:
        return
    chunks = divisors(num_layers // p)[1:] if num_layers % p == 0 else []
    for other in SEARCHED_SCHEDULES:
        if other != schedule and (chunks or other != "interleaved"):
            # Interleaving needs equal chunks, and so an even spread of the layers.
            size = chunks[0] if other == "interleaved" else 1
            spread = None if other == "interleaved" else parallel.layers_per_stage
            yield "schedule", strategy.changed(schedule=other, virtual_pipeline_size=size, layers_per_stage=spread)
    if schedule == "interleaved":
        for size in _next_to(parallel.virtual_pipeline_size, chunks):
            yield "virtual_pipeline_size", strategy.changed(virtual_pipeline_size=size)
        return
    for layers in _other_spreads(parallel, num_layers):
        yield "layers_per_stage", strategy.changed(layers_per_stage=layers)


def _other_spreads(parallel: ParallelPlan, num_layers: int) -> list[tuple[int, ...] | None]:
    """The even spread, and those whose first or last stage holds one layer more or less."""
    p, layers = parallel.pipeline_parallel_size, parallel.layers_per_stage
    even = even_ends(num_layers, p)
    first, last = even if layers is None else (layers[0], layers[-1])
    moved = [even, (first - 1, last), (first, last - 1), (first + 1, last), (first, last + 1)]
    known = [ends for ends in dict.fromkeys(moved) if ends != (first, last) and ends in layer_ends(num_layers, p)]
    return [None if ends == even else spread_layers(num_layers, p, *ends) for ends in known]
