"""One plan as a value: what a search finds, a person names, and a sweep measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conf.overrides import value_text
from conf.plan.experiment import Experiment, ExperimentParts
from conf.plan.knobs import KNOB, KNOBS, KnobValue, knob_value, label_of
from conf.plan.setup import Setup
from conf.plan.setup_parts import SetupParts
from conf.types.schema import BatchPlan, ParallelPlan
from costs.setting import Plans, Setting

GROUPS: Mapping[str, type[ParallelPlan] | type[BatchPlan]] = {"parallel": ParallelPlan, "batch": BatchPlan}


PLAIN_KNOBS: Mapping[str, KnobValue] = {
    name: field.default
    for plan in GROUPS.values()
    for name, field in plan.model_fields.items()
    if not field.is_required()
}
"""Knobs that few plans mention, at the values that they have where nobody does."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Every choice that a search makes.

    Nothing is checked before it becomes an experiment, so that also plans that cannot exist can be named and explained.
    """

    parallel: ParallelPlan
    batch: BatchPlan

    @classmethod
    def of(cls, values: Mapping[str, KnobValue]) -> Strategy:
        """The strategy of these knobs, by their names; sizes that follow from others are not looked at."""
        values = {**PLAIN_KNOBS, **values}
        stated: dict[str, Any] = {name: values[name] for plan in GROUPS.values() for name in plan.model_fields}
        # `model_construct` skips pydantic's checks, which would refuse what a strategy is allowed to describe.
        parallel = ParallelPlan.model_construct(**{name: stated[name] for name in ParallelPlan.model_fields})
        batch = BatchPlan.model_construct(**{name: stated[name] for name in BatchPlan.model_fields})
        return cls(parallel, batch)

    @property
    def num_micro_batches(self) -> int:
        return self.batch.global_batch_size // (self.batch.micro_batch_size * max(1, self.parallel.data_parallel_size))

    def knob_value(self, knob: str) -> Any:
        return knob_value(knob, self.parallel, self.batch)

    def with_values(self, **values: KnobValue) -> Strategy:
        """A copy of this strategy with other values for some knobs."""
        stated: dict[str, KnobValue] = {**dict(self.parallel), **dict(self.batch)}
        assert values.keys() <= stated.keys(), f"{values.keys() - stated.keys()} follow from other knobs"
        return Strategy.of({**stated, **values})

    def settings(self) -> dict[str, Any]:
        """The dotted keys of the configuration that state this strategy, with their values."""
        return {
            f"{group}.{name}": self.knob_value(name) for group, plan in GROUPS.items() for name in plan.model_fields
        }

    def experiment(self, like: ExperimentParts) -> Experiment:
        """The experiment of this strategy, with everything that is not a plan taken from `like`.

        Raises:
            InfeasiblePlan: it cannot exist, or not with what else is configured.
        """
        others = {name: getattr(like, name) for name in ExperimentParts.model_fields if name not in GROUPS}
        return Experiment(parallel=ParallelPlan(**dict(self.parallel)), batch=BatchPlan(**dict(self.batch)), **others)

    def setup(self, like: SetupParts) -> Setup:
        """Return what is priced of this strategy, whichever trainer is to carry it out.

        Raises:
            InfeasiblePlan: it cannot exist.
        """
        others = {name: getattr(like, name) for name in SetupParts.model_fields if name not in GROUPS}
        return Setup(parallel=ParallelPlan(**dict(self.parallel)), batch=BatchPlan(**dict(self.batch)), **others)

    def overrides(self) -> list[str]:
        return [f"{key}={value_text(value)}" for key, value in self.settings().items()]

    def label(self, num_layers: int, leave_out: Collection[str] = ()) -> str:
        """Its layout in short, as trial folders name it."""
        return label_of(self.parallel, self.batch, self.layers_per_stage(num_layers), leave_out)

    def layers_per_stage(self, num_layers: int) -> tuple[int, ...]:
        """The layers as they are stated, or as they are spread where nothing is."""
        p = self.parallel.pipeline_parallel_size
        return self.parallel.layers_per_stage or spread_layers(num_layers, p, *even_ends(num_layers, p))


def spread_layers(num_layers: int, num_stages: int, first: int, last: int) -> tuple[int, ...]:
    """Layers of every stage as `Plans` spreads them between a given first and last stage."""
    # The earlier inner stages take one more, as in `costs.stages`, so that estimates of both forms agree.
    if num_stages == 1:
        return (first,)
    if num_stages == 2:
        return (first, last)
    base, fuller = divmod(num_layers - first - last, num_stages - 2)
    return (first, *((base + 1,) * fuller), *((base,) * (num_stages - 2 - fuller)), last)


def even_ends(num_layers: int, num_stages: int) -> tuple[int, int]:
    """Layers of the first and of the last stage where all stages hold as nearly the same number as possible."""
    # The first stage is among the fuller ones wherever there are any, and the last never is.
    base, fuller = divmod(num_layers, num_stages)
    return base + (fuller > 0), base


def strategies_of(
    plans: Plans, num_layers: int, *, tensor_parallel_across_nodes: bool, settings: Sequence[Setting] = ()
) -> list[Strategy]:
    """The rows of `plans`, as values; where each has its setting, its placing is stated, too."""
    columns = {name: getattr(plans, name).tolist() for name in Plans.__slots__}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    of_settings = [name for name in KNOB if name in Setting.__slots__]
    shared: list[dict[str, KnobValue]] = [
        {name: getattr(setting, name) for name in of_settings} for setting in settings
    ]
    across: dict[str, KnobValue] = {"tensor_parallel_across_nodes": tensor_parallel_across_nodes}
    return [
        _strategy(row, num_layers, across | knobs) for row, knobs in zip(rows, shared or [{}] * len(rows), strict=True)
    ]


def _strategy(row: dict[str, int], num_layers: int, shared: Mapping[str, KnobValue]) -> Strategy:
    t, p, d = row["tensor_parallel_size"], row["pipeline_parallel_size"], row["data_parallel_size"]
    ends = (row["first_stage_layers"], row["last_stage_layers"])
    values = {knob.name: knob.plain for knob in KNOBS if knob.has_plain}
    values |= {name: KNOB[name].value(entry) for name, entry in row.items() if name in KNOB}
    return Strategy.of(
        {
            **values,
            "world_size": t * p * d * row["context_parallel_size"],
            "global_batch_size": row["micro_batch_size"] * row["num_micro_batches"] * d,
            # An even spread is stated as null, as people write it, so that equal plans are equal as values.
            "layers_per_stage": None if ends == even_ends(num_layers, p) else spread_layers(num_layers, p, *ends),
            **shared,
        }
    )
