"""A table of the plain model's modules that are split, over which axes, and what else of them a layout replaces.

A module that is not in the table `STYLES`, such as a norm, stays as it is: every tensor rank holds and computes all of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from conf.types.schema import ParallelPlan
from train_core.axes import EXPERT
from train_core.model.dropout import Dropping
from train_core.model.mixture import Balance, Capacity
from train_core.parallel.collectives import Axis
from train_core.parallel.context_parallel import ContextAttention
from train_core.parallel.expert_parallel import ExpertParallel, own_weights, shared_balance, shared_capacity
from train_core.parallel.narrow import ScaledProducts
from train_core.parallel.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    SequenceShardedPositions,
    SharedKey,
    VocabularyParallelCrossEntropy,
    VocabularyParallelEmbedding,
)


@dataclass(frozen=True)
class Place:
    """The place of a module in the model, and what its form on this rank depends on beside the axes.

    Attributes:
        name: the module's name in the whole model.
        narrow: the form of its products, where it is a linear layer or holds experts; None multiplies in the type of
            the weights.
    """

    name: str
    plan: ParallelPlan
    dropping: Dropping
    narrow: ScaledProducts | None = None

    @property
    def sequence(self) -> bool:
        """True if activations between tensor-parallel regions are sharded along the sequence."""
        return self.plan.sequence_parallel


Form = Callable[..., nn.Module]
"""Makes a module's form on this rank, from the whole module, the axes that its style names, and its `Place`."""


class Style(NamedTuple):
    """The rule that turns a module of the plain model into its form on one rank.

    Attributes:
        splits: by the name of a parameter in the module, the dim that is split over each axis.
        axes: those that the form needs.
        has_own_heads: every tensor rank holds all of the parameters and has other heads, so that its gradients are
            summands.
    """

    form: Form
    splits: Mapping[str, Mapping[str, int]] = {}
    axes: tuple[str, ...] = ("tensor",)
    has_own_heads: bool = False


def _split(form: Form) -> Form:
    """A form that of its place only needs to know whether the sequence is sharded."""
    return lambda whole, axis, place: form(whole, axis, place.sequence)


def _product(form: Form) -> Form:
    return lambda whole, axis, place: form(whole, axis, place.sequence, place.narrow)


def _positions(whole: nn.Module, axis: Axis, context: Axis, place: Place) -> nn.Module:
    return SequenceShardedPositions(whole, axis, place.sequence, context)


def _dropout(whole: nn.Module, axis: Axis, place: Place) -> nn.Module:
    # Without sequence parallelism all tensor ranks hold the same values here, and have to drop the same ones.
    return place.dropping.values(place.name, axis.rank if place.sequence else 0) or whole


def _core(whole: nn.Module, axis: Axis, context: Axis, place: Place) -> nn.Module:
    if context.size > 1:
        return ContextAttention(context, place.plan.context_exchange)
    return place.dropping.scores(place.name, axis.rank) or whole


def _balance(whole: nn.Module, axis: Axis, context: Axis, place: Place) -> nn.Module:
    assert isinstance(whole, Balance)
    return shared_balance(whole, axis, context, sequence=place.sequence)


def _capacity(whole: nn.Module, axis: Axis, context: Axis, place: Place) -> nn.Module:
    assert isinstance(whole, Capacity)
    return shared_capacity(whole, axis, context, sequence=place.sequence)


COLUMN = Style(_product(ColumnParallelLinear), {"weight": {"tensor": 0}, "bias": {"tensor": 0}})
ROW = Style(_product(RowParallelLinear), {"weight": {"tensor": 1}})
DROPOUT = Style(_dropout)
NORM_OF_HEADS = Style(lambda whole, axis, place: whole, has_own_heads=True)
EXPERT_WEIGHTS = Style(lambda whole, axis, place: own_weights(whole, axis), {"weight": {EXPERT: 0}}, (EXPERT,))
STYLES: dict[str, Style] = {
    "embedding.tokens": Style(_split(VocabularyParallelEmbedding), {"weight": {"tensor": 0}}),
    "embedding.positions": Style(_positions, axes=("tensor", "context")),
    "embedding.dropout": DROPOUT,
    "attention.qkv": COLUMN,
    "attention.down": Style(lambda whole, axis, place: ColumnParallelLinear(whole, Axis(), False, place.narrow)),
    "attention.query_up": COLUMN,
    "attention.pair_up": COLUMN,
    "attention.shared_key": Style(_split(SharedKey)),
    "attention.query_norm": NORM_OF_HEADS,
    "attention.key_norm": NORM_OF_HEADS,
    "attention.core": Style(_core, axes=("tensor", "context")),
    "attention.projection": ROW,
    "attention.dropout": DROPOUT,
    "feed_forward.up": COLUMN,
    "feed_forward.down": ROW,
    "feed_forward.dropout": DROPOUT,
    "feed_forward.router.balance": Style(_balance, axes=("tensor", "context")),
    "feed_forward.capacity": Style(_capacity, axes=("tensor", "context")),
    "feed_forward.experts": Style(lambda whole, axis, place: ExpertParallel(whole, axis, place.narrow), axes=(EXPERT,)),
    "feed_forward.experts.up": EXPERT_WEIGHTS,
    "feed_forward.experts.down": EXPERT_WEIGHTS,
    "feed_forward.shared.up": COLUMN,
    "feed_forward.shared.down": ROW,
    "head": COLUMN,
    "loss": Style(_split(VocabularyParallelCrossEntropy)),
}


def style_of(module_name: str) -> Style | None:
    """The style of a module, if it has one; `layers.7.attention.qkv` is listed as `attention.qkv`."""
    parts = module_name.split(".")
    return STYLES.get(".".join(parts[2:] if parts[0] == "layers" else parts))
