"""From the plain model to one rank's part of it. The order of `parallelize` is the documentation.

Transformer on the meta device       all layers of the stage, without memory
cut_chunk                            the embedding stays in the first chunk, norm and head in the last
apply_styles                         modules become their form on this rank, by `styles.STYLES`
apply_to_layers                      recomputation and compiled layers
fill                                 first weights, of which each rank keeps its part

Layers are compiled in parts: the products start collectives and add to main gradients in backward, which a compiled
graph could not do; what lies between them (norms, activations, residual sums) is bound by memory, and fusing is what
speeds it up.

`recompute: pointwise` keeps no result of a norm or an activation:

    forward     x --[ norm ]--> y --[ product ]--> z        y is dropped once z has been made
    backward    x --[ norm ]--> y, for the gradient of the product's weight

What is made again is the input of the next matrix product, from the module's own input, which autograd keeps for the
module's gradient anyway. No product and no collective runs again: under sequence parallelism a product keeps only a
shard of its input, and gathers it in backward whether it was kept or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from conf.types.schema import ParallelPlan
from train_core.axes import ENDS, EXPERT, EXPERT_REPLICAS, REPLICAS
from train_core.model.dropout import (
    SEEDED_ATTENTION,
    Dropping,
    DroppingAttention,
    Randomness,
)
from train_core.model.dtypes import DTYPES
from train_core.model.initialize import initial_value
from train_core.model.mixture import MixtureOfExperts
from train_core.model.transformer import FeedForward, Layer, Transformer, rotary_table_of, takes_groups
from train_core.parallel.collectives import shard
from train_core.parallel.context_parallel import ContextAttention, own_tokens
from train_core.parallel.mesh import Mesh
from train_core.parallel.styles import Place, style_of
from train_core.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear

TIED_HEAD, TIED_EMBEDDING = "head.weight", "embedding.tokens.weight"

FirstValue = Callable[[str, torch.Size], Tensor]
"""The whole parameter in fp32, on the rank's device, by its name in the whole model and its shape."""


@dataclass(frozen=True)
class Placement:
    """The relation of this rank's parameter to the model's.

    Attributes:
        name: the parameter's name in the whole model; the head of a tied model has the embedding's name.
        splits: the dim that is split over each axis, without the axes whose ranks all hold it whole.
        copied_over: the groups whose ranks all hold it; `train_core.axes.ENDS` is one of them.
        summed_over: the groups of whose ranks each has only a summand of its gradient, apart from the replicas.
        reduced_over: the axes along which its replicas lie.
    """

    name: str
    splits: Mapping[str, int] = field(default_factory=dict)
    copied_over: tuple[str, ...] = ()
    summed_over: tuple[str, ...] = ()
    reduced_over: tuple[str, ...] = REPLICAS


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


def parallelize(
    experiment: Experiment,
    mesh: Mesh,
    device: torch.device,
    first_value: FirstValue | None = None,
    attention: DroppingAttention = SEEDED_ATTENTION,
) -> Stage:
    """Build one rank's part of the model.

    On the meta device nothing is allocated; nor is it under ZeRO-3 on any other, for a rank may have no room for its
    whole part: `fill` gives a module its weights when they can be sharded.

    Args:
        first_value: the weights to start from; None draws them from the seed of the training.
        attention: how scores are dropped where a training drops values.
    """
    dtype, chunks = DTYPES[experiment.precision.dtype], list[Transformer]()
    placements, shapes = dict[str, Placement](), dict[str, torch.Size]()
    plan, randomness = experiment.training, _randomness(experiment, mesh)
    dropping = Dropping(plan.dropout, randomness, attention)
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
        placements |= apply_styles(model, mesh, experiment.parallel, dropping)
        apply_to_layers(model, experiment.parallel, compiler_of(device) if plan.compile_layers else None)
        # The table follows from the model's shape. On the meta device it had no values, and so it is made again.
        rotary = rotary_table_of(experiment.model, device)
        model.rotary = None if rotary is None else own_tokens(rotary, mesh.axis("context"), dim=1).to(dtype)
        chunks.append(model)
    part = partial(_first_part, first_value or _from_seed(experiment, device), mesh)
    stage = Stage(tuple(chunks), placements, randomness, lambda name: part(placements[name], shapes[name]).to(dtype))
    for chunk in chunks:
        if device.type == "meta":
            chunk.to(dtype)
        elif not experiment.is_fully_sharded:
            fill(chunk, stage.first_value)
    return stage


def cut_chunk(model: Transformer, *, is_first: bool, is_last: bool) -> None:
    """Keep the embedding in the first part of the model, norm and head in the last."""
    if not is_first:
        model.embedding = None
    if not is_last:
        model.final_norm = model.head = None
        model.loss = nn.Identity()


def apply_styles(model: Transformer, mesh: Mesh, plan: ParallelPlan, dropping: Dropping) -> dict[str, Placement]:
    """Replace modules by their form on this rank, by the table of styles, and say how each parameter relates to the
    whole.

    The split form serves an axis of one rank too, where it is as fast.
    """
    for name, module in list(model.named_modules()):  # a list, because the loop changes what it goes through
        style = style_of(name)
        # torch's own identity stands for a part that the model, or this chunk of it, does not have.
        if style is not None and type(module) is not nn.Identity:
            axes = (mesh.axis(axis) for axis in style.axes)
            model.set_submodule(name, style.form(module, *axes, Place(name, plan, dropping)))
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
        summed_over=(on_all if sequence else ()) + at_both_ends,
    )


def _randomness(experiment: Experiment, mesh: Mesh) -> Randomness:
    size = experiment.batch.micro_batch_size
    # Masks are drawn by a sequence's place in the global batch, so that they do not depend on the number of replicas.
    return Randomness(experiment.training.seed, mesh.batch.rank * experiment.num_micro_batches * size, size)


def apply_to_layers(model: Transformer, plan: ParallelPlan, compiled: Compiler | None) -> None:
    """Recompute part of the first layer and of every n-th after it in backward; compile every layer."""
    for position, layer in enumerate(model.layers.values()):
        assert isinstance(layer, Layer)
        recompute = plan.recompute if position % plan.recompute_every == 0 else "none"
        if recompute == "selective":
            layer.attention.set_submodule("core", RecomputedAttention(layer.attention.core))
        if recompute == "pointwise":
            drop_pointwise_outputs(layer)
        if compiled is not None:
            layer.forward = compiled(layer)  # type: ignore[method-assign]
        if recompute == "full":
            # A module around the layer would change the names of its parameters.
            layer.forward = partial(_run_and_recompute, layer.forward)  # type: ignore[method-assign]


# Masks follow from seeds (`model.dropout`), so that there is no random state to save and restore.
_run_and_recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


class RecomputedAttention(nn.Module):
    """Attention that is computed again in backward.

    It is a module, because torch's compiler would take a layer whose forward function was replaced for another layer.
    """

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = _run_and_recompute(self.core, query, key, value)
        return out


def _from_seed(experiment: Experiment, device: torch.device) -> FirstValue:
    num_layers, seed = experiment.model.num_layers, experiment.training.seed
    return lambda name, shape: initial_value(name, shape, num_layers, seed, device)


def _first_part(first: FirstValue, mesh: Mesh, placement: Placement, shape: torch.Size) -> Tensor:
    part = whole = first(placement.name, shape)
    for axis, dim in placement.splits.items():
        part = shard(part, mesh.axis(axis), dim)
    # A view would keep the whole parameter in memory.
    return whole if part is whole else part.clone()


def fill(module: nn.Module, value_of: Callable[[str], Tensor], name: str = "") -> None:
    """Give every parameter that has no memory its value; a parameter that two modules share stays shared.

    Args:
        name: the module's name in its model.
    """
    # By the identity of the old parameter, so that modules that shared one share the new one.
    empty = [(leaf, old) for leaf, old in module.named_parameters(prefix=name) if old.is_meta]
    filled = {id(old): nn.Parameter(value_of(leaf)) for leaf, old in empty}
    for inner in module.modules():
        for leaf, parameter in list(inner.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter.is_meta:
                setattr(inner, leaf, filled[id(parameter)])


BACKEND = "inductor"
Compiler = Callable[[nn.Module], Callable[..., torch.Tensor]]


def compiler_of(device: torch.device) -> Compiler:
    """The compiler that turns a layer into its compiled forward function.

    Raises:
        ConfigError: the machine lacks what torch's compiler needs.
    """
    missing = _missing_triton() if device.type == "cuda" else _missing_cpp_compiler()
    if missing:
        remedy = f"Install {missing}, or set training.compile_layers=false."
        raise ConfigError("training.compile_layers", True, f"needs {missing}, which is not found here", remedy)
    return _compile


def _compile(layer: nn.Module) -> Callable[..., torch.Tensor]:
    # It asks the driver, which the compiler cannot trace. Marked here, because the mark imports the compiler.
    torch.compiler.assume_constant_result(takes_groups)
    # Functions are replaced, and modules not wrapped, because a wrapper would change the names of parameters.
    for module in layer.modules():
        # How many rows an expert gets differs from pass to pass, for each of which there would be code of its own.
        if isinstance(module, ColumnParallelLinear | RowParallelLinear | ContextAttention | MixtureOfExperts):
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
    # All passes have activations of one shape, so that code for any shape would only be slower.
    forward: Callable[..., torch.Tensor] = torch.compile(layer.forward, backend=BACKEND, dynamic=False)
    return forward


def _missing_triton() -> str | None:
    from torch.utils._triton import has_triton

    return None if has_triton() else "triton"


def _missing_cpp_compiler() -> str | None:
    """The compiler that torch misses on a CPU; asking imports torch's compiler, which takes a second."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler"
    return None


def drop_pointwise_outputs(layer: Layer) -> None:
    """Let the three products that follow a norm or the activation keep a recipe of their input instead of it."""
    feed_forward = layer.feed_forward
    assert isinstance(feed_forward, FeedForward), "pointwise recomputation is refused where there are experts"
    pairs = (
        (layer.attention_norm, layer.attention.qkv),
        (layer.feed_forward_norm, feed_forward.up),
        (feed_forward.activation, feed_forward.down),
    )
    for maker, product in pairs:
        recipe = DroppedOutput(maker)
        maker.register_forward_hook(recipe.note)
        # The function is replaced, for a module around the product would change the names of its parameters.
        product.forward = recipe.without_its_input(product.forward)


class DroppedOutput:
    """A module's last input, from which its output is made again."""

    def __init__(self, maker: nn.Module) -> None:
        self.make: Callable[[Tensor], Tensor] = maker.forward
        self.x: Tensor | None = None

    def note(self, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        """Remember the input, as a forward hook of the maker; detached, so that its graph is not kept along with it."""
        self.x = args[0].detach()

    def without_its_input(self, product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The forward function of a product that follows, which saves nothing for backward but its input."""

        def forward(y: Tensor) -> Tensor:
            x, self.x = self.x, None  # let go, or it would outlive its backward pass
            assert x is not None
            with saved_tensors_hooks(lambda _: None, lambda _: self.again(x)):
                return product(y)

        return forward

    def again(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.make(x)
