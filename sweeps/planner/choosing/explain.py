"""Explains why a plan is as fast as it is: the parts of its step, what binds, and what changing one knob would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conf.errors import InfeasiblePlan
from conf.plan.experiment import ExperimentParts
from conf.plan.knobs import KNOB, layers_in_short
from conf.plan.setup import Setup
from conf.plan.trainer_limits import limits_of, require_runnable
from conf.units import GIBIBYTE
from sweeps.planner.choosing.neighbours import neighbours
from sweeps.planner.plans.space import padded_for
from sweeps.planner.plans.strategy import Strategy
from train_core.costs import Estimate, Implementation, estimate
from train_core.costs.trainers import TRISWEEP


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
    alternatives = sorted(
        (
            _alternative(knob, changed, parts, implementation, predicted)
            for knob, changed in neighbours(strategy, parts, implementation)
        ),
        key=_order,
    )
    return Explanation(
        label=setup.label,
        reason=shortfall(predicted),
        estimate=predicted,
        terms=_sort_descending(predicted.step_terms.by_term()),
        memory=_sort_descending(predicted.stages[predicted.worst_stage].by_kind()),
        alternatives=tuple(alternatives),
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
    return f"{said} on {strategy.parallel.world_size} devices"


def shortfall(predicted: Estimate) -> str | None:
    """A sentence on how much memory a plan lacks and what takes most of it; None where the plan fits."""
    if predicted.fits:
        return None
    largest, size = next(iter(_sort_descending(predicted.stages[predicted.worst_stage].by_kind()).items()))
    return (
        f"does not fit: stage {predicted.worst_stage} is {predicted.shortfall_bytes / GIBIBYTE:.1f} GiB short"
        f" ({largest.removesuffix('_bytes')} alone take {size / GIBIBYTE:.1f} GiB)"
    )


def _sort_descending(values: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _order(alternative: Alternative) -> tuple[int, float]:
    """Sort first those that run, by speed, then those that do not fit, by what they lack, then the impossible ones."""
    if alternative.slower is not None:
        return (0, alternative.slower)
    return (1, float(alternative.estimate.shortfall_bytes)) if alternative.estimate else (2, 0.0)


def _alternative(
    knob: str, changed: Strategy, parts: ExperimentParts, implementation: Implementation, plan: Estimate
) -> Alternative:
    value = _value_text(knob, changed)
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
