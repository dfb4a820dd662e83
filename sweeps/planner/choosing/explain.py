"""Explains why a plan is as fast as it is: the parts of its step, what binds, and what changing one knob would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeVar

from conf.errors import InfeasiblePlan
from conf.plan.experiment import ExperimentParts
from conf.plan.knobs import KNOB, KNOBS, KnobValue, layers_in_short, on_devices
from conf.plan.setup import Setup
from conf.plan.trainer_limits import limits_of, require_runnable
from conf.types.schema import ParallelPlan
from conf.units import GIBIBYTE
from costs import Estimate, Implementation, estimate
from costs.trainers import TRISWEEP
from sweeps.planner.plans.runnable import chunk_numbers, has_chunks, layer_ends, runs
from sweeps.planner.plans.space import RECOMPUTE_EVERY, SEARCHED_SCHEDULES, divisors, padded_for
from sweeps.planner.plans.strategy import Strategy, even_ends, spread_layers

Value = TypeVar("Value", bound=KnobValue)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that differs from the explained one in one knob, and in what follows from that knob.

    Attributes:
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
        reason: why it cannot exist, or by how much it does not fit; None where it can run.
        estimate: None where it cannot exist.
        terms: seconds of a step by term, the largest first.
        memory: bytes of the fullest stage by what they hold, the largest first.
    """

    label: str
    reason: str | None
    estimate: Estimate | None
    terms: dict[str, float]
    memory: dict[str, int]
    alternatives: tuple[Alternative, ...]

    @property
    def headroom_bytes(self) -> int:
        """The memory that the fullest stage leaves free; negative if it does not fit."""
        assert self.estimate is not None
        return self.estimate.memory_capacity_bytes - self.estimate.peak_memory_bytes


def explain(strategy: Strategy, parts: ExperimentParts, implementation: Implementation) -> Explanation:
    """Take a plan apart, on the model, cluster and precision of `parts`.

    A plan that cannot exist is explained too: the reason is the explanation.
    """
    try:
        setup = priceable(strategy, padded_for(parts, strategy.parallel.tensor_parallel_size), implementation)
    except InfeasiblePlan as error:
        return Explanation(plain_label(strategy), str(error), None, {}, {}, ())
    predicted = estimate(setup, implementation)
    others = neighbours(strategy, parts, implementation)
    changes = [(knob, _value_text(knob, other), other, parts) for knob, other in others]
    changes += [(knob, value, strategy, changed) for knob, value, changed in _other_products(parts, implementation)]
    alternatives = [_alternative(*change, implementation, predicted) for change in changes]
    return Explanation(
        label=setup.label,
        reason=shortfall(predicted),
        estimate=predicted,
        terms=_sort_descending(predicted.step_terms.by_term()),
        memory=_sort_descending(predicted.stages[predicted.worst_stage].by_kind()),
        alternatives=tuple(sorted(alternatives, key=_order)),
    )


def priceable(strategy: Strategy, parts: ExperimentParts, implementation: Implementation) -> Setup:
    """Return what is priced of a strategy: for this package's trainer an experiment that it can carry out.

    Raises:
        InfeasiblePlan: it cannot exist, or the trainer cannot run it.
    """
    setup = strategy.experiment(parts) if implementation.name == TRISWEEP.name else strategy.setup(parts)
    require_runnable(setup, implementation.name, limits_of(implementation.name))
    return setup


def plain_label(strategy: Strategy) -> str:
    """A label for a plan that cannot exist, whose other sizes need not even be whole numbers."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "micro_batch_size")
    said = "-".join(KNOB[name].label_of(strategy.knob_value(name)) for name in sizes)
    return f"{said} {on_devices(strategy.parallel.world_size)}"


def shortfall(predicted: Estimate) -> str | None:
    """A sentence on how much memory a plan lacks and what takes most of it; None where the plan fits."""
    if predicted.fits:
        return None
    largest, size = next(iter(_sort_descending(predicted.stages[predicted.worst_stage].by_kind()).items()))
    name = largest.removesuffix("_bytes")
    return (
        f"does not fit: stage {predicted.worst_stage} is {predicted.shortfall_bytes / GIBIBYTE:.1f} GiB short"
        f" ({name} alone {'take' if name.endswith('s') else 'takes'} {size / GIBIBYTE:.1f} GiB)"
    )


def _sort_descending(values: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _order(alternative: Alternative) -> tuple[int, float]:
    """Sort first those that run, by speed, then those that do not fit, by what they lack, then the impossible ones."""
    if alternative.slower is not None:
        return (0, alternative.slower)
    return (1, float(alternative.estimate.shortfall_bytes)) if alternative.estimate else (2, 0.0)


def _alternative(
    knob: str, value: str, changed: Strategy, parts: ExperimentParts, implementation: Implementation, plan: Estimate
) -> Alternative:
    try:
        predicted = estimate(
            priceable(changed, padded_for(parts, changed.parallel.tensor_parallel_size), implementation), implementation
        )
    except InfeasiblePlan as error:
        return Alternative(knob, value, None, f"{error.key} = {error.value}: {error.problem}", None)
    slower = predicted.step_seconds / plan.step_seconds - 1 if predicted.fits else None
    return Alternative(knob, value, predicted, shortfall(predicted), slower)


def _value_text(knob: str, strategy: Strategy) -> str:
    value = strategy.knob_value(knob)
    if isinstance(value, tuple):
        return layers_in_short(value)
    return "even" if value is None else str(value).lower()


def neighbours(strategy: Strategy, parts: ExperimentParts, trainer: Implementation) -> Iterator[tuple[str, Strategy]]:
    """Plans with one knob at its next smaller or larger value, or at each of its other values that the trainer runs.

    The data-parallel size follows from the others. Neighbours that cannot exist are yielded as well, since the reason
    why they cannot is part of the answer.
    """
    yield from _other_sizes(strategy, parts, trainer)
    batch, replicas = strategy.batch, max(1, strategy.parallel.data_parallel_size)
    for size in _next_to(batch.micro_batch_size, divisors(max(1, batch.global_batch_size // replicas))):
        yield "micro_batch_size", strategy.with_values(micro_batch_size=size)
    yield from _other_values(strategy, trainer)
    yield from _other_pipelines(strategy, parts.model.num_layers, trainer)


def _other_products(parts: ExperimentParts, trainer: Implementation) -> Iterator[tuple[str, str, ExperimentParts]]:
    """The parts with the other ways to make narrow products: wide, or with casts that are compiled."""
    if parts.precision.priced_recipe is None:
        return
    wide = {"matmul_recipe": None, "wide_layers": 0}
    yield "matmul_recipe", "null", parts.model_copy(update={"precision": parts.precision.model_copy(update=wide)})
    if trainer.casts_anew and not parts.training.compile_layers:
        training = parts.training.model_copy(update={"compile_layers": True})
        yield "compile_layers", "true", parts.model_copy(update={"training": training})


def _other_sizes(strategy: Strategy, parts: ExperimentParts, trainer: Implementation) -> Iterator[tuple[str, Strategy]]:
    parallel, d = strategy.parallel, strategy.parallel.data_parallel_size
    t, p, c = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.context_parallel_size
    for size in _next_to(t, divisors(parallel.world_size // (p * c))):
        yield "tensor_parallel_size", strategy.with_values(tensor_parallel_size=size)
    for size in _next_to(p, divisors(parallel.world_size // (t * c))):
        yield "pipeline_parallel_size", _with_stages(strategy, size, parts.model.num_layers)
    for size in _next_to(
        c, _runnable_values(trainer, "context_parallel_size", divisors(parallel.world_size // (t * p)))
    ):
        yield "context_parallel_size", strategy.with_values(context_parallel_size=size)
    num_experts = parts.model.experts.num_experts if parts.model.experts else 1
    holders = d * c * t // (parallel.expert_tensor_parallel_size or t)
    shared = divisors(gcd(num_experts, max(1, holders)))
    for size in _next_to(parallel.expert_parallel_size, _runnable_values(trainer, "expert_parallel_size", shared)):
        yield "expert_parallel_size", strategy.with_values(expert_parallel_size=size)


def _other_values(strategy: Strategy, trainer: Implementation) -> Iterator[tuple[str, Strategy]]:
    parallel = strategy.parallel
    if parallel.recompute != "none":
        for every in _next_to(parallel.recompute_every, list(RECOMPUTE_EVERY)):
            yield "recompute_every", strategy.with_values(recompute_every=every)
    # A schedule changes chunks and layers along with it, so `_other_pipelines` makes those neighbours.
    for knob in KNOBS:
        if knob.role == "searched" and knob.name != "schedule":
            for value in _runnable_values(trainer, knob.name, knob.values):
                if value != strategy.knob_value(knob.name) and _says_something(knob.name, value, parallel.num_replicas):
                    # Where nothing is recomputed any more, there is no question in which layers.
                    plain = {"recompute_every": 1} if (knob.name, value) == ("recompute", "none") else {}
                    yield knob.name, strategy.with_values(**{knob.name: value}, **plain)


def _runnable_values(trainer: Implementation, knob: str, values: Sequence[Value]) -> list[Value]:
    return [value for value in values if runs(trainer, knob, value)]


def _says_something(knob: str, value: KnobValue, num_replicas: int) -> bool:
    """True if another value changes anything: a single replica has nothing to share out, so its ZeRO stage is moot."""
    return knob != "zero_stage" or num_replicas > 1 or value == KNOB[knob].plain


def _next_to(size: int, sizes: list[int]) -> list[int]:
    """The next smaller and the next larger of the sizes, which are ascending, where there is one."""
    smaller, larger = [other for other in sizes if other < size], [other for other in sizes if other > size]
    return smaller[-1:] + larger[:1]


def _with_stages(strategy: Strategy, num_stages: int, num_layers: int) -> Strategy:
    """The plan with another number of stages, spread evenly, and with no more chunks than before.

    Where only one chunk is left, nothing can be interleaved, and the schedule becomes 1F1B.
    """
    schedule = strategy.parallel.schedule
    chunks = min(strategy.parallel.virtual_pipeline_size, max(1, num_layers // num_stages))
    changed = strategy.with_values(pipeline_parallel_size=num_stages, layers_per_stage=None)
    if num_stages == 1 or (schedule == "interleaved" and chunks == 1):
        return changed.with_values(schedule="1f1b", virtual_pipeline_size=1)
    return changed.with_values(virtual_pipeline_size=chunks)


def _other_pipelines(strategy: Strategy, num_layers: int, trainer: Implementation) -> Iterator[tuple[str, Strategy]]:
    """Plans with another schedule, another number of chunks or another spread of the layers."""
    parallel = strategy.parallel
    p, schedule = parallel.pipeline_parallel_size, parallel.schedule
    if p == 1:
        return
    layers_of = strategy.layers_per_stage(num_layers)
    ends = (layers_of[0], layers_of[-1])
    chunks = [size for size in chunk_numbers(num_layers, p) if has_chunks(num_layers, p, ends, size)]
    for other in _runnable_values(trainer, "schedule", SEARCHED_SCHEDULES):
        if other != schedule and (chunks or other != "interleaved"):
            size = chunks[0] if other == "interleaved" else 1
            yield "schedule", strategy.with_values(schedule=other, virtual_pipeline_size=size)
    if schedule == "interleaved":
        for size in _next_to(parallel.virtual_pipeline_size, chunks):
            yield "virtual_pipeline_size", strategy.with_values(virtual_pipeline_size=size)
    for layers in _other_spreads(parallel, num_layers):
        yield "layers_per_stage", strategy.with_values(layers_per_stage=layers)


def _other_spreads(parallel: ParallelPlan, num_layers: int) -> list[tuple[int, ...] | None]:
    """The even spread, and those whose first or last stage holds one layer more or less."""
    p, layers = parallel.pipeline_parallel_size, parallel.layers_per_stage
    even = even_ends(num_layers, p)
    first, last = even if layers is None else (layers[0], layers[-1])
    moved = [even, (first - 1, last), (first, last - 1), (first + 1, last), (first, last + 1)]
    known = [ends for ends in dict.fromkeys(moved) if ends != (first, last) and ends in layer_ends(num_layers, p)]
    return [None if ends == even else spread_layers(num_layers, p, *ends) for ends in known]
