"""What is done with a layer as a whole: what its forward pass does not keep, and what torch's compiler fuses in it.

What recomputation does not keep, backward makes again (`conf.types.recompute`). That of a norm or an activation:

    forward     x --[ norm ]--> y --[ product ]--> z        y is dropped once z has been made
    backward    x --[ norm ]--> y, for the gradient of the product's weight

What is made again is the input of the next matrix product, from the module's own input, which autograd keeps for the
module's gradient anyway. No product and no collective runs again: under sequence parallelism a product keeps only a
shard of its input, and gathers it in backward whether it was kept or not.

Layers are compiled in parts. Products start collectives and add to main gradients in backward, which a compiled graph
could not do; what lies between them (norms, activations, residual sums) is bound by memory, and fusing is what speeds
it up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from conf.errors import ConfigError
from conf.types.recompute import MODES
from conf.types.schema import ParallelPlan
from train_core.model.attention import LatentAttention
from train_core.model.attention_blocks import takes_groups
from train_core.model.documents import Documents
from train_core.model.elementwise import WideNorm
from train_core.model.mixture import MixtureOfExperts
from train_core.model.transformer import Attention, FeedForward, Layer, Transformer
from train_core.parallel.context_parallel import ContextAttention
from train_core.parallel.offload import HOST, HostMemory, offload
from train_core.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, SharedKey


def apply_to_layers(
    model: Transformer, plan: ParallelPlan, device: torch.device, host: HostMemory = HOST, *, compiles: bool
) -> None:
    """Recompute part of the first layer and of every n-th after it in backward; compile or offload every layer."""
    if compiles:
        require_compiler(device)
    for position, layer in enumerate(model.layers.values()):
        assert isinstance(layer, Layer)
        repeated = MODES[plan.recompute].repeats if position % plan.recompute_every == 0 else ()
        if "core" in repeated:
            layer.attention.set_submodule("core", RecomputedAttention(layer.attention.core))
        if "outputs" in repeated:
            drop_pointwise_outputs(layer)
        if compiles:
            layer.forward = compiled_forward(layer)  # type: ignore[method-assign]
        if "layer" in repeated:
            # A module around the layer would change the names of its parameters.
            layer.forward = partial(run_and_recompute, layer.forward)  # type: ignore[method-assign]
        if plan.offload_activations:
            offload(layer, host, keeps_input=position == 0)


# Masks follow from seeds (`model.dropout`), so that there is no random state to save and restore.
run_and_recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


class RecomputedAttention(nn.Module):
    """Attention that is computed again in backward.

    It is a module, because torch's compiler would take a layer whose forward function was replaced for another layer.
    """

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, *heads: Tensor, documents: Documents | None = None, sinks: Tensor | None = None) -> Tensor:
        return run_and_recompute(self.core, *heads, documents=documents, sinks=sinks)


def drop_pointwise_outputs(layer: Layer) -> None:
    """Let the three products that follow a norm or the activation keep a recipe of their input instead of it."""
    attention, feed_forward = layer.attention, layer.feed_forward
    assert isinstance(feed_forward, FeedForward), "pointwise recomputation is refused where there are experts"
    assert isinstance(attention, Attention), "and where attention is latent"
    pairs = (
        (layer.attention_norm, attention.qkv),
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


BACKEND = "inductor"
NOT_COMPILED = (ColumnParallelLinear, RowParallelLinear, SharedKey, ContextAttention, MixtureOfExperts, WideNorm)


def require_compiler(device: torch.device) -> None:
    """Raises ConfigError where the machine lacks what torch's compiler needs."""
    from torch.utils._triton import has_triton

    missing = None if has_triton() else "triton"
    if device.type != "cuda":
        missing = _missing_cpp_compiler()
    if missing:
        remedy = f"Install {missing}, or set training.compile_layers=false."
        raise ConfigError("training.compile_layers", True, f"needs {missing}, which is not found here", remedy)


def compiled_forward(layer: nn.Module) -> Callable[..., Tensor]:
    # It asks the driver, which the compiler cannot trace. Marked here, because the mark imports the compiler.
    torch.compiler.assume_constant_result(takes_groups)
    # Functions are replaced, and modules not wrapped, because a wrapper would change the names of parameters.
    for module in layer.modules():
        # How many rows an expert gets differs from pass to pass, for each of which there would be code of its own.
        if isinstance(module, NOT_COMPILED):
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
        if isinstance(module, LatentAttention | Attention) and module.is_in_a_block:
            module.core.forward = torch.compiler.disable(module.core.forward)  # type: ignore[method-assign]
    # All passes have activations of one shape, so that code for any shape would only be slower.
    return torch.compile(layer.forward, backend=BACKEND, dynamic=False)


def _missing_cpp_compiler() -> str | None:
    """The compiler that torch misses on a CPU; asking imports torch's compiler, which takes a second."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler"
    return None
