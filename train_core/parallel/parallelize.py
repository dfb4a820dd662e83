"""From the plain model to one rank's part of it. The order of `parallelize` is the documentation.

Transformer on the meta device       all layers of the stage, without memory
cut_chunk                            the embedding stays in the first chunk, norm and head in the last
apply_styles                         modules become their form on this rank, by `STYLES`
apply_to_layers                      recomputation, compiled and offloaded layers
fill                                 first weights, of which each rank keeps its part
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from conf.plan.experiment import Experiment
from conf.types.schema import ParallelPlan
from costs.axes import ENDS, EXPERT, EXPERT_REPLICAS, REPLICAS
from costs.shared_rules import Role, Treatment, kept_role
from train_core.model.attention import CausalAttention
from train_core.model.dropout import Dropping, Randomness
from train_core.model.initialize import DTYPES, fill, initial_value, rotary_table_of
from train_core.model.transformer import Sinks, Transformer
from train_core.parallel.collectives import Axis, all_reduce, shard
from train_core.parallel.context_parallel import ContextAttention, own_tokens
from train_core.parallel.expert_parallel import ExpertParallel, own_weights, shared_balance, shared_capacity
from train_core.parallel.layers import apply_to_layers
from train_core.parallel.mesh import Mesh
from train_core.parallel.narrow import PLAIN, ScaledProducts, narrow_products, require_narrow_products
from train_core.parallel.offload import HOST, HostMemory
from train_core.parallel.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    SequenceShardedPositions,
    SharedKey,
    VocabularyParallelCrossEntropy,
    VocabularyParallelEmbedding,
    norm_over_heads,
)

TIED_HEAD, TIED_EMBEDDING = "head.weight", "embedding.tokens.weight"

FirstValue = Callable[[str, torch.Size, Axis], Tensor]
"""A parameter in fp32, on the rank's device, by its name in the whole model and its shape; of experts, which stand one
below the other, those alone that are this rank's where an axis shares them out."""


@dataclass(frozen=True)
class Placement:
    """The relation of this rank's parameter to the model's.

    Attributes:
        name: the parameter's name in the whole model; the head of a tied model has the embedding's name.
        splits: the dim that is split over each axis, without the axes whose ranks all hold it whole.
        copied_over: the groups whose ranks all hold it; `costs.axes.ENDS` is one of them.
        summed_over: the groups of whose ranks each has only a summand of its gradient, apart from the replicas.
        reduced_over: the axes along which its replicas lie.
        role: as in `Treatment`.
    """

    name: str
    splits: Mapping[str, int] = field(default_factory=dict)
    copied_over: tuple[str, ...] = ()
    summed_over: tuple[str, ...] = ()
    reduced_over: tuple[str, ...] = REPLICAS
    role: Role = ""


@dataclass(frozen=True)
class Stage:
    """One rank's model chunks, first to last, and for each of its parameters (by name) how it relates to the whole.

    Modules of all chunks have the names that they have in the whole model, so no two share one.

    Attributes:
        randomness: has to be told what is worked on, where a training drops values.
        first_value: this rank's part of the first weights of a parameter, by its name, in the compute precision and on
            the rank's device.
    """

    chunks: tuple[Transformer, ...]
    placements: dict[str, Placement]
    randomness: Randomness
    first_value: Callable[[str], Tensor]

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """All parameters in model order; one that two modules share comes once."""
        return [named for chunk in self.chunks for named in chunk.named_parameters()]


def treatment_of(stage: Stage, name: str, parameter: nn.Parameter) -> Treatment:
    """The treatment of one of this rank's parameters, alike on all ranks that hold it."""
    placement = stage.placements[name]
    # Matrices decay. What has one dim is a bias or the scale of a norm, whose size is not to be held down.
    return Treatment(
        parameter.dim() > 1, placement.copied_over, placement.summed_over, placement.reduced_over, placement.role
    )


def role_of(name: str, num_dims: int) -> Role:
    """What a parameter is, by its name in the whole model; of vectors nothing is asked."""
    if num_dims < 2:
        return ""
    return "embedding" if name.startswith("embedding.") else "head" if name == TIED_HEAD else "hidden"


def parallelize(
    experiment: Experiment,
    mesh: Mesh,
    device: torch.device,
    first_value: FirstValue | None = None,
    host: HostMemory = HOST,
) -> Stage:
    """Build one rank's part of the model.

    On the meta device nothing is allocated; nor is it under ZeRO-3 on any other, for a rank may have no room for its
    whole part: `fill` gives a module its weights when they can be sharded.

    Args:
        first_value: the weights to start from; None draws them from the seed of the training.
        host: where offloaded activations wait.
    """
    dtype, chunks = DTYPES[experiment.precision.dtype], list[Transformer]()
    placements, shapes = dict[str, Placement](), dict[str, torch.Size]()
    require_narrow_products(experiment.precision, device)
    plan, size = experiment.training, experiment.batch.micro_batch_size
    # Masks are drawn by a sequence's place in the global batch, so that they do not depend on the number of replicas.
    randomness = Randomness(plan.seed, mesh.batch.rank * experiment.num_micro_batches * size, size)
    dropping = Dropping(plan.dropout, randomness)
    num_layers, compiles = experiment.model.num_layers, plan.compile_layers
    narrow = partial(narrow_products, experiment.precision, num_layers=num_layers, compiles=compiles)
    chunk_ranges = experiment.chunk_ranges[mesh.pipeline.rank]
    for index, layers in enumerate(chunk_ranges):
        # Without memory, because the whole layers of a stage may not fit before they are split.
        with torch.device("meta"):
            model = Transformer(experiment.model, layers)
        # By the chunk's place, since the next one begins with the same layer where there is only the embedding in it.
        is_first, is_last = index == 0, index == len(chunk_ranges) - 1
        cut_chunk(model, is_first=mesh.is_first_stage and is_first, is_last=mesh.is_last_stage and is_last)
        # Shapes of whole parameters, which first weights are drawn in; after the next line a rank holds parts of them.
        shapes |= {name: parameter.shape for name, parameter in model.named_parameters()}
        placed = apply_styles(model, mesh, experiment.parallel, dropping, narrow)
        if isinstance(model.loss, VocabularyParallelCrossEntropy):
            model.loss.z_loss = plan.z_loss
        placements |= {name: _with_role(each, shapes[name], experiment) for name, each in placed.items()}
        apply_to_layers(model, experiment.parallel, device, host, compiles=compiles)
        # The table follows from the model's shape. On the meta device it had no values, and so it is made again.
        rotary = rotary_table_of(experiment.model, device)
        if rotary is not None and not experiment.data.separate_documents:  # whose positions may be any, on any rank
            rotary = own_tokens(rotary, mesh.axis("context"), dim=1)
        model.rotary = None if rotary is None else rotary.to(dtype)
        chunks.append(model)
    # Types of GPUs draw differently from one seed, so that the copies of a tied embedding would never be one matrix.
    ends = mesh.axis(ENDS) if experiment.mixed else Axis()
    part = partial(_first_part, first_value or _from_seed(experiment, device), mesh, ends)
    stage = Stage(tuple(chunks), placements, randomness, lambda name: part(placements[name], shapes[name]).to(dtype))
    for chunk in chunks:
        if device.type == "meta":
            chunk.to(dtype)
        elif not experiment.is_fully_sharded:
            fill(chunk, stage.first_value)
    return stage


@dataclass(frozen=True)
class Place:
    """The place of a module in the model, and what its form on this rank depends on.

    Attributes:
        name: the module's name in the whole model.
        narrow: the products of a linear layer or of experts; None multiplies in the type of the weights.
    """

    name: str
    mesh: Mesh
    plan: ParallelPlan
    dropping: Dropping
    narrow: ScaledProducts | None = None

    @property
    def tensor(self) -> Axis:
        return self.mesh.tensor

    @property
    def context(self) -> Axis:
        return self.mesh.axis("context")

    @property
    def sequence(self) -> bool:
        """True if activations between tensor-parallel regions are sharded along the sequence."""
        return self.plan.sequence_parallel

    @property
    def sequence_axis(self) -> Axis:
        """The tensor ranks that then share out the tokens of a sequence; else this rank alone, which has all."""
        return self.tensor if self.sequence else Axis()


class Style(NamedTuple):
    """The rule that turns a module of the plain model into its form on one rank.

    Attributes:
        form: makes the module's form on this rank, from the whole module and its place; None takes the module away.
        splits: by the name of a parameter in the module, the dim that is split over each axis.
        has_own_heads: every tensor rank holds all of the parameters and has other heads, so that its gradients are
            summands.
    """

    form: Callable[[Any, Place], nn.Module | None]
    splits: Mapping[str, Mapping[str, int]] = {}
    has_own_heads: bool = False


def _core(whole: CausalAttention, place: Place) -> nn.Module:
    if place.context.size > 1:
        return ContextAttention(place.context, place.plan.context_exchange, whole)
    dropping = place.dropping.scores(place.name, place.tensor.rank)
    if dropping is not None:
        dropping.window = whole.window
    return dropping or whole


COLUMN = Style(
    lambda whole, at: ColumnParallelLinear(whole, at.tensor, at.sequence, at.narrow or PLAIN),
    {"weight": {"tensor": 0}, "bias": {"tensor": 0}},
)
ROW = Style(
    lambda whole, at: RowParallelLinear(whole, at.tensor, at.sequence, at.narrow or PLAIN), {"weight": {"tensor": 1}}
)
# Without sequence parallelism all tensor ranks hold the same values here, and have to drop the same ones.
DROPOUT = Style(lambda whole, at: at.dropping.values(at.name, at.sequence_axis.rank))
NORM_OVER_HEADS = Style(lambda whole, at: norm_over_heads(whole, at.tensor), {"weight": {"tensor": 0}})
NORM_OF_HEADS = Style(lambda whole, at: whole, has_own_heads=True)
EXPERT_WEIGHTS = Style(
    lambda whole, at: own_weights(whole, at.mesh.axis(EXPERT)), {"weight": {EXPERT: 0}, "bias": {EXPERT: 0}}
)
STYLES: dict[str, Style] = {
    "embedding.tokens": Style(
        lambda whole, at: VocabularyParallelEmbedding(whole, at.tensor, at.sequence), {"weight": {"tensor": 0}}
    ),
    "embedding.positions": Style(lambda whole, at: SequenceShardedPositions(whole, at.sequence_axis, at.context)),
    "embedding.dropout": DROPOUT,
    "attention.qkv": COLUMN,
    "attention.down": Style(lambda whole, at: ColumnParallelLinear(whole, Axis(), False, at.narrow or PLAIN)),
    "attention.query_up": COLUMN,
    "attention.pair_up": COLUMN,
    "attention.shared_key": Style(lambda whole, at: SharedKey(at.tensor, at.sequence)),
    "attention.query_norm": NORM_OF_HEADS,
    "attention.key_norm": NORM_OF_HEADS,
    "attention.queries_norm": NORM_OVER_HEADS,
    "attention.keys_norm": NORM_OVER_HEADS,
    "attention.sinks": Style(
        lambda whole, at: Sinks(shard(whole.weight.detach(), at.tensor)), {"weight": {"tensor": 0}}
    ),
    "attention.core": Style(_core),
    "attention.projection": ROW,
    "attention.dropout": DROPOUT,
    "feed_forward.up": COLUMN,
    "feed_forward.down": ROW,
    "feed_forward.dropout": DROPOUT,
    "feed_forward.router.balance": Style(lambda whole, at: shared_balance(whole, at.sequence_axis, at.context)),
    "feed_forward.capacity": Style(lambda whole, at: shared_capacity(whole, at.sequence_axis, at.context)),
    "feed_forward.experts": Style(lambda whole, at: ExpertParallel(whole, at.mesh.axis(EXPERT), at.narrow)),
    "feed_forward.experts.up": EXPERT_WEIGHTS,
    "feed_forward.experts.down": EXPERT_WEIGHTS,
    "feed_forward.shared.up": COLUMN,
    "feed_forward.shared.down": ROW,
    "head": COLUMN,
    "loss": Style(lambda whole, at: VocabularyParallelCrossEntropy(at.tensor, whole.cap)),
}
"""How each module is split. One that is not here, such as a norm, stays whole on every tensor rank."""


def style_of(module_name: str) -> Style | None:
    """The style of a module, if it has one; `layers.7.attention.qkv` is listed as `attention.qkv`."""
    parts = module_name.split(".")
    return STYLES.get(".".join(parts[2:] if parts[0] == "layers" else parts))


def cut_chunk(model: Transformer, *, is_first: bool, is_last: bool) -> None:
    """Keep the embedding in the first part of the model, norm and head in the last."""
    if not is_first:
        model.embedding = None
    if not is_last:
        model.final_norm = model.head = None
        model.loss = nn.Identity()


def apply_styles(
    model: Transformer,
    mesh: Mesh,
    plan: ParallelPlan,
    dropping: Dropping,
    narrow: Callable[[str], ScaledProducts | None],
) -> dict[str, Placement]:
    """Replace modules by their form on this rank, by `STYLES`; returns how each parameter relates to the whole.

    The split form serves an axis of one rank too, where it is as fast. `narrow` is that of `Place`, by a module's name.
    """
    for name, module in list(model.named_modules()):  # a list, because the loop changes what it goes through
        style = style_of(name)
        # torch's own identity stands for a part that the model, or this chunk of it, does not have.
        if style is not None and type(module) is not nn.Identity:
            around, _, own = name.rpartition(".")
            form = style.form(module, Place(name, mesh, plan, dropping, narrow(name)))
            setattr(model.get_submodule(around), own, form)
    # The split embedding has a parameter of its own, to which the head has to be tied again.
    if model.spec.tied_embeddings and model.embedding is not None and model.head is not None:
        model.head.weight = model.embedding.tokens.weight
    return {name: _placement(name, model, mesh, plan.sequence_parallel) for name, _ in model.named_parameters()}


def _placement(name: str, model: Transformer, mesh: Mesh, sequence: bool) -> Placement:
    module_name, _, leaf = name.rpartition(".")
    style, is_tied = style_of(module_name), model.spec.tied_embeddings and name in (TIED_HEAD, TIED_EMBEDDING)
    splits = style.splits.get(leaf, {}) if style is not None else {}
    if EXPERT in splits:  # whatever their other coordinates, the ranks with the same experts are replicas of them
        return Placement(name, splits, reduced_over=(EXPERT_REPLICAS,))
    # A tied embedding is on the first and on the last stage, each of which has a summand of its gradient.
    at_both_ends = (ENDS,) if is_tied and mesh.axis(ENDS).size > 1 else ()
    # What is not split is on every tensor rank, of which each sees other tokens under sequence parallelism.
    on_all = ("tensor",) if "tensor" not in splits and mesh.tensor.size > 1 else ()
    return Placement(
        name=TIED_EMBEDDING if is_tied else name,
        splits=splits,
        copied_over=on_all + at_both_ends,
        summed_over=(on_all if sequence or (style is not None and style.has_own_heads) else ()) + at_both_ends,
    )


def _with_role(placement: Placement, shape: torch.Size, experiment: Experiment) -> Placement:
    role = role_of(placement.name, len(shape))
    return replace(placement, role=kept_role(role, experiment.training, experiment.model.hidden_size))


def _from_seed(experiment: Experiment, device: torch.device) -> FirstValue:
    num_layers, seed = experiment.model.num_layers, experiment.training.seed
    base, width = experiment.training.mup_base_width, experiment.model.hidden_size

    def value(name: str, shape: torch.Size, experts: Axis) -> Tensor:
        # Drawn whole, so that every layout starts alike.
        whole = initial_value(name, shape, num_layers, seed, device)
        if base is not None:  # arXiv 2203.03466, table 3
            whole *= {"hidden": (base / width) ** 0.5, "head": base / width}.get(role_of(name, len(shape)), 1.0)
        return whole if experts.size == 1 else shard(whole, experts).clone()

    return value


def _first_part(first: FirstValue, mesh: Mesh, ends: Axis, placement: Placement, shape: torch.Size) -> Tensor:
    """This rank's part of a parameter. A tied one takes that of the first of `ends`, where these are two ranks."""
    splits = dict(placement.splits)
    part = whole = first(placement.name, shape, Axis() if splits.pop(EXPERT, None) is None else mesh.axis(EXPERT))
    for axis, dim in splits.items():
        part = shard(part, mesh.axis(axis), dim)
    if ENDS in placement.copied_over and ends.size > 1:
        part = all_reduce(part if ends.rank == 0 else torch.zeros_like(part), ends).wait()
    # A view would keep the whole parameter in memory.
    return whole if part is whole else part.clone()
