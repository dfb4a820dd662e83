"""Dropout without a random state: every mask follows from what it is for, so that recomputation and any schedule repeat
it, and nothing has to be saved.

A mask is drawn from a generator of its own, seeded by the training's seed, the step, the first sequence of the
micro-batch, the site in the model, and the part of it that this rank holds. Between tensor-parallel regions all tensor
ranks drop the same values, unless sequence parallelism gives each its own part of the sequence.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from train_core.model.attention import CausalAttention, causal_attention
from train_core.model.documents import Documents
from train_core.model.elementwise import UntransformedFunction


@dataclass
class Randomness:
    """The step, set by the trainer, and the micro-batch of every pass, set by the executor, that seeds depend on.

    Attributes:
        first_sequence: the first sequence of this replica in a global batch.
    """

    seed: int
    first_sequence: int
    micro_batch_size: int
    step: int = 0
    micro_batch: int = 0

    def seed_of(self, site: str, part: int) -> int:
        sequence = self.first_sequence + self.micro_batch * self.micro_batch_size
        key = f"{self.seed}:{self.step}:{sequence}:{site}:{part}"
        # Python's own hash of a string differs from process to process. The shift keeps the seed in signed 64 bits.
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


class _Dropped(UntransformedFunction):
    """The kept elements, scaled up; keeps one byte of mask per element for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float, seed: int) -> Tensor:
        generator = torch.Generator(x.device).manual_seed(seed)
        mask = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - probability, generator=generator)
        ctx.probability = probability
        ctx.save_for_backward(mask)
        return _apply_mask(x, mask, probability)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return _apply_mask(grad_out, mask, ctx.probability), None, None


def _apply_mask(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    """x * mask / (1 - probability), by the one kernel that torch has for it, named after its use in backward."""
    return torch.ops.aten.native_dropout_backward(x, mask, 1 / (1 - probability))


class SeededDropout(nn.Module):
    """Zeroes elements and scales up the others.

    Leaves all elements as they are where gradients are disabled, as in an evaluation.
    """

    def __init__(self, site: str, part: int, dropping: Dropping) -> None:
        """`part` says which part of the tensor this rank holds; it is equal on ranks that hold the same part."""
        super().__init__()
        self.site, self.part, self.dropping = site, part, dropping

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return x
        seed = self.dropping.randomness.seed_of(self.site, self.part)
        return _Dropped.apply(x, self.dropping.probability, seed)


def takes_all_heads(query: Tensor) -> bool:
    """True if one call drops scores of all heads of a rank.

    A CPU has no fused kernel with dropout; there every head is a call, so that heads drop the same scores on whichever
    rank they are. Tensors without values, as in a rehearsal, stand for those of a GPU.
    """
    return query.is_cuda or isinstance(query, FakeTensor)


class AttentionWithDropout(CausalAttention):
    """Computes attention and drops scores. `part` is the tensor rank, each of which holds other heads."""

    def __init__(self, site: str, part: int, dropping: Dropping) -> None:
        super().__init__()
        self.site, self.part, self.dropping = site, part, dropping

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, documents: Documents | None, sinks: Tensor | None
    ) -> Tensor:
        assert sinks is None, "dropout is refused beside sinks and capped scores"
        if not torch.is_grad_enabled():  # as in an evaluation
            return super().attend(query, key, value, documents, sinks)
        shared = query.size(1) // key.size(1)
        count = 1 if takes_all_heads(query) else query.size(1)
        queries = query.chunk(count, dim=1)
        # Where each query head is a call of its own, it takes the key and value head of its group along.
        pairs = [(key, value)]
        if count > 1:
            pairs = [(key[:, i // shared, None], value[:, i // shared, None]) for i in range(count)]
        outs = [self._drop(self.part * count + i, queries[i], *pairs[i], documents) for i in range(count)]
        # torch.cat would copy even a single one, and keep the copy for backward.
        return outs[0] if count == 1 else torch.cat(outs, dim=1)

    def _drop(self, part: int, query: Tensor, key: Tensor, value: Tensor, documents: Documents | None) -> Tensor:
        if isinstance(query, FakeTensor):  # a GPU's kernel keeps no mask, and a CPU's would store the scores
            return causal_attention(query, key, value, documents=documents, window=self.window)
        # The kernels draw from the device's default generator.
        generator = torch.cuda.default_generators[query.get_device()] if query.is_cuda else torch.default_generator
        generator.manual_seed(self.dropping.randomness.seed_of(self.site, part))
        return causal_attention(query, key, value, self.dropping.probability, documents, self.window)


@dataclass(frozen=True)
class Dropping:
    """The dropout of a training, if it drops anything."""

    probability: float
    randomness: Randomness

    def values(self, site: str, part: int) -> nn.Module | None:
        """Dropout for a place that the model leaves for it; see `SeededDropout`."""
        return SeededDropout(site, part, self) if self.probability else None

    def scores(self, site: str, part: int) -> AttentionWithDropout | None:
        """An attention core that drops scores; see `AttentionWithDropout`."""
        return AttentionWithDropout(site, part, self) if self.probability else None
