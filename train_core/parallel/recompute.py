"""Recomputation: what a layer's forward pass does not keep is made again in backward.

`recompute: full` repeats a whole layer, `selective` the core of attention alone.

`recompute: pointwise` keeps no result of a norm or an activation:

    forward     x --[ norm ]--> y --[ product ]--> z        y is dropped once z has been made
    backward    x --[ norm ]--> y, for the gradient of the product's weight

What is made again is the input of the next matrix product, from the module's own input, which autograd keeps for the
module's gradient anyway. No product and no collective runs again: under sequence parallelism a product keeps only a
shard of its input, and gathers it in backward whether it was kept or not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from train_core.model.documents import Documents
from train_core.model.transformer import Attention, FeedForward, Layer

# Masks follow from seeds (`model.dropout`), so that there is no random state to save and restore.
run_and_recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


class RecomputedAttention(nn.Module):
    """Attention that is computed again in backward.

    It is a module, because torch's compiler would take a layer whose forward function was replaced for another layer.
    """

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, query: Tensor, key: Tensor, value: Tensor, documents: Documents | None = None) -> Tensor:
        return run_and_recompute(self.core, query, key, value, documents)


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
