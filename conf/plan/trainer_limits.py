"""The limits of trainers: one list for each in `trainer_limits.yaml`, read by searches and composed experiments.

A search asks `runs` value by value and leaves the others out; a plan that is given is refused by `require_runnable`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter, field_validator

from conf.errors import InfeasiblePlan
from conf.folders import package_content
from conf.overrides import value_text
from conf.plan.setup import Setup
from conf.plan.trainer_call import (
    has_few_micro_batches,
    has_irregular_groups,
    has_torn_zero_groups,
    has_unequal_chunks,
    has_uneven_groups,
    layer_split,
)
from conf.types.model_spec import ModelSpec
from conf.types.schema import Dtype, Frozen, MatmulRecipe, PrecisionPlan, Schedule, Value
from conf.types.trainer_spec import Limit

LAYER_SPLIT = "layer_split"
UNEQUAL_CHUNKS = "has_unequal_chunks"
UNEVEN_GROUPS = "has_uneven_groups"
IRREGULAR_GROUPS = "has_irregular_groups"
HAS_BF16 = "device_has_bf16"
SPLIT_QUERY_GROUPS = "has_split_query_groups"
FEW_MICRO_BATCHES = "has_few_micro_batches"
TORN_ZERO_GROUPS = "has_torn_zero_groups"
WINDOW = "model.narrow_window"
FURTHER_PARTS = "model.further_parts"

Beside: TypeAlias = frozenset[str]
"""Features of a plan on which it depends if a trainer can run a value of another key."""
Feature = Literal[
    "pipeline",
    "tensor",
    "context",
    "replicas",
    "offload",
    "activations_offloaded",
    "experts",
    "dense",
    "plain_layers",
    "latent",
    "wide_values",
    "wide_norms",
]
BESIDE_NOTHING: Beside = frozenset()


def beside(model: ModelSpec, precision: PrecisionPlan | None = None, *words: str, **has: bool) -> Beside:
    """The features of a model and its precision, further words, and the names of what is true."""
    experts = model.experts
    has |= {"experts": experts is not None, "dense": experts is None, "latent": model.latent_attention is not None}
    has |= {"plain_layers": experts is None or bool(experts.num_dense_layers or experts.shared_ffn_hidden_size)}
    flags = {**has, "wide_values": model.attended_size > model.query_size}
    flags["wide_norms"] = "wide_qk_norm" in model.parts
    of_precision = (precision.dtype, precision.matmul_recipe) if precision else ()
    return frozenset((*filter(None, of_precision), *words, *(name for name, is_so in flags.items() if is_so)))


class DeclaredLimit(Limit):
    """Values of the plan that a trainer cannot run.

    Attributes:
        of: a dotted key, or a name of `DERIVED_VALUES`; a group that may be null, such as `model.experts`, is null or
            `given`.
        beside: in which plans alone this holds, by one feature or several that come together: several stages, tensor
            ranks, context ranks or replicas, offloading of the optimizer or of activations, experts or none (dense), an
            activation that is not an expert's (plain_layers), latent attention, values wider than queries, norms over
            all heads, a schedule, a type, the recipe of narrow products; nothing: in all.
        differs: a program runs such plans, but otherwise than they are priced. They are not priced, and the program's
            `trainer.differs` says what is otherwise.
    """

    beside: Annotated[tuple[Feature | Schedule | Dtype | MatmulRecipe, ...], Field(strict=False)] = ()
    differs: bool = False

    @field_validator("beside", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    def holds(self, beside: Beside) -> bool:
        """True if this counts for plans of this kind."""
        return beside.issuperset(self.beside)

    def refusal(self, value: object, trainer: str, otherwise: str) -> InfeasiblePlan:
        """The error for a value that the trainer does not run, of a dotted key that a person can change.

        Args:
            otherwise: what can be done instead of taking a value that it runs.
        """
        key, remedy = self.of, "Use " + " or ".join(f"{self.of}={value_text(runs)}" for runs in self.other_than)
        if not self.other_than:
            remedy = "Choose another value"
        if self.of in DERIVED_VALUES:
            key, remedy = DERIVED_VALUES[self.of].key, DERIVED_VALUES[self.of].remedy
        return InfeasiblePlan(
            key, value, f"is not supported by {trainer}: {self.because}", f"{remedy}, or {otherwise}."
        )

    def refusal_of(self, setup: Setup, trainer: str, otherwise: str) -> InfeasiblePlan:
        """The error for a setup that meets this limit."""
        key = DERIVED_VALUES[self.of].key if self.of in DERIVED_VALUES else self.of
        named = self.of if self.of == FURTHER_PARTS else key
        value = setup.layers_per_stage if self.of == LAYER_SPLIT else _value_at(setup, named)
        return self.refusal(value, trainer, otherwise)


@dataclass(frozen=True, slots=True)
class Following:
    """A value that follows from a plan.

    Attributes:
        key: what a person changes to get another one.
        remedy: how, as the first half of a sentence.
    """

    value: Callable[[Setup], Value]
    key: str
    remedy: str


def _further_parts(setup: Setup) -> Any:
    return setup.model.further_parts


DERIVED_VALUES = {
    LAYER_SPLIT: Following(
        lambda setup: layer_split(setup.layers_per_stage),
        "parallel.layers_per_stage",
        "Leave it null, with a number of stages that divides the layers",
    ),
    WINDOW: Following(
        lambda setup: setup.model.narrow_window,
        "model.attention_window",
        "Use a model.seq_length that fits into the window, or model.attention_window=null",
    ),
    FURTHER_PARTS: Following(_further_parts, "model.parts", "Use a model without them"),
    UNEQUAL_CHUNKS: Following(
        has_unequal_chunks,
        "parallel.virtual_pipeline_size",
        "Choose one that cuts all stages into chunks of equal numbers of layers",
    ),
    SPLIT_QUERY_GROUPS: Following(
        lambda setup: bool(setup.model.num_query_groups % setup.parallel.tensor_parallel_size),
        "parallel.tensor_parallel_size",
        "Use one that divides model.num_query_groups",
    ),
    HAS_BF16: Following(
        lambda setup: "bf16" in setup.cluster.device.dtypes, "cluster.device.name", "Choose a newer device"
    ),
    FEW_MICRO_BATCHES: Following(
        has_few_micro_batches,
        "parallel.pipeline_parallel_size",
        "Use fewer stages, a smaller batch.micro_batch_size or a larger batch.global_batch_size",
    ),
    TORN_ZERO_GROUPS: Following(
        has_torn_zero_groups, "parallel.zero_group_size", "Use a multiple of parallel.context_parallel_size"
    ),
    **{
        name: Following(
            value, "batch.micro_batch_size", "Choose one with which stages divide a replica's micro-batches"
        )
        for name, value in {UNEVEN_GROUPS: has_uneven_groups, IRREGULAR_GROUPS: has_irregular_groups}.items()
    },
}


@cache
def limits_of(trainer: str) -> tuple[DeclaredLimit, ...]:
    """The limits of the trainer with this name, one of `CostsOf`."""
    return _declared_limits()[trainer]


@cache
def limits_of_program(trainer: str) -> tuple[DeclaredLimit, ...]:
    """Those that also hold for a program that takes over the list of this trainer."""
    return tuple(limit for limit in limits_of(trainer) if not limit.differs)


def runs(trainer: str, name: str, value: Value, features: Beside = BESIDE_NOTHING) -> bool:
    """True if plans of this kind can be run with this value of a dotted key, or of a name of `DERIVED_VALUES`."""
    limits = (limit for limit in limits_of(trainer) if limit.of == name)
    return not any(limit.meets(value) and limit.holds(features) for limit in limits)


def require_runnable(
    setup: Setup, trainer: str, limits: Sequence[DeclaredLimit], otherwise: str = "choose another trainer"
) -> None:
    """Refuse a plan that a trainer cannot run.

    Rows that somebody measured are not held against this: that they ran is known.

    Args:
        trainer: its name, for the message.
        otherwise: what can be done instead of changing the plan.

    Raises:
        InfeasiblePlan: names the key, its value, and what the trainer runs.
    """
    parallel = setup.parallel
    features = beside(
        setup.model,
        setup.precision,
        parallel.schedule,
        pipeline=parallel.pipeline_parallel_size > 1,
        tensor=parallel.tensor_parallel_size > 1,
        context=parallel.context_parallel_size > 1,
        replicas=setup.data_parallel_size > 1,
        offload=parallel.offload_optimizer,
        activations_offloaded=parallel.offload_activations,
    )
    for limit in limits:
        if limit.holds(features) and limit.meets(_value_at(setup, limit.of)):
            raise limit.refusal_of(setup, trainer, otherwise)


def _value_at(setup: Setup, name: str) -> Value:
    """The value of a name; of a group that may be null, such as `model.experts`, whether it is given."""
    if name == "parallel.recompute_every" and setup.parallel.recompute == "none":
        return 1  # where nothing is recomputed, it says nothing
    if name in DERIVED_VALUES:
        return DERIVED_VALUES[name].value(setup)
    value: Any = setup
    for part in name.split("."):
        value = getattr(value, part)
    return "given" if isinstance(value, Frozen) else value


@cache
def _declared_limits() -> Mapping[str, tuple[DeclaredLimit, ...]]:
    tree = package_content("trainer_limits.yaml")
    lists = TypeAdapter(dict[str, Annotated[tuple[DeclaredLimit, ...], Field(strict=False)]])
    return lists.validate_python(tree)
