"""The split loss and embedding against torch's own, values and gradients, over real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from train_core.collectives import shard
from train_core.mesh import Layout, build_mesh
from train_core.model import TokenEmbedding
from train_core.tensor_parallel import VocabularyParallelEmbedding, vocabulary_cross_entropy

S, B, V, H = 6, 3, 16, 8


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3


def targets() -> Tensor:
    return torch.randint(V, (S, B), generator=torch.Generator().manual_seed(1))


def split_loss(world: Any, dtype: torch.dtype, offset: float) -> tuple[float, Tensor]:
    axis = build_mesh(Layout(world.size, 1, 1), world.rank).tensor
    logits = shard(seeded(S, B, V) + offset, axis, dim=2).to(dtype).clone().requires_grad_()
    loss = vocabulary_cross_entropy(logits, targets(), axis)
    (loss * 0.5).backward()
    return float(loss.detach()), logits.grad


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("offset", [0.0, 1e4], ids=["small logits", "logits whose exponential overflows"])
def test_the_split_cross_entropy_is_torchs(worlds: Any, num_ranks: int, offset: float) -> None:
    logits = (seeded(S, B, V) + offset).requires_grad_()
    expected = functional.cross_entropy(logits.flatten(0, 1), targets().flatten())
    (expected * 0.5).backward()
    answers = worlds(num_ranks).run(split_loss, torch.float32, offset)
    for loss, _ in answers:
        assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(torch.cat([gradient for _, gradient in answers], -1), logits.grad, rtol=1e-4, atol=1e-6)


def test_the_split_cross_entropy_works_in_fp32_on_bf16_logits(worlds: Any) -> None:
    rounded = seeded(S, B, V).bfloat16()
    expected = functional.cross_entropy(rounded.float().flatten(0, 1), targets().flatten())
    answers = worlds(2).run(split_loss, torch.bfloat16, 0.0)
    assert answers[0][0] == pytest.approx(float(expected), rel=1e-5)
    assert answers[0][1].dtype == torch.bfloat16


def split_embedding(world: Any, sequence: bool) -> tuple[Tensor, Tensor]:
    axis = build_mesh(Layout(world.size, 1, 1), world.rank).tensor
    whole = TokenEmbedding(V, H)
    whole.weight = nn.Parameter(seeded(V, H))
    module = VocabularyParallelEmbedding(whole, axis, sequence)
    vectors = module(targets())
    upstream = seeded(S, B, H)
    vectors.backward(shard(upstream, axis) if sequence else upstream)
    return vectors.detach(), module.weight.grad


@pytest.mark.parametrize("sequence", [False, True], ids=["whole sequence", "sequence parallel"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_split_embedding_is_torchs(worlds: Any, num_ranks: int, sequence: bool) -> None:
    weight = seeded(V, H).requires_grad_()
    expected = functional.embedding(targets(), weight)
    expected.backward(seeded(S, B, H))
    answers = worlds(num_ranks).run(split_embedding, sequence)
    vectors = torch.cat([part for part, _ in answers]) if sequence else answers[0][0]
    torch.testing.assert_close(vectors, expected.detach())
    torch.testing.assert_close(torch.cat([gradient for _, gradient in answers]), weight.grad)
