"""The split loss, embedding and products against torch's own, values and gradients, over real ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from conf.types.schema import ParallelPlan
from costs.axes import Layout
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.model.dropout import Dropping, Randomness
from train_core.model.initialize import rotary_table_of
from train_core.model.transformer import FeedForward, Layer, TokenEmbedding
from train_core.parallel.collectives import shard
from train_core.parallel.groups import build_mesh
from train_core.parallel.parallelize import STYLES, Place
from train_core.parallel.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabularyParallelCrossEntropy,
    VocabularyParallelEmbedding,
)
from train_core.process.world import World

S, B, V, H = 6, 3, 16, 8


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3


def gradient_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def targets() -> Tensor:
    return torch.randint(V, (S, B), generator=torch.Generator().manual_seed(1))


def split_loss(world: World, dtype: torch.dtype, offset: float) -> tuple[float, Tensor]:
    axis = build_mesh(Layout({"tensor": world.size}), world.rank).tensor
    logits = shard(seeded(S, B, V) + offset, axis, dim=2).to(dtype).clone().requires_grad_()
    loss = VocabularyParallelCrossEntropy(axis)(logits, targets())
    (loss * 0.5).backward()
    assert logits.grad is not None
    return float(loss.detach()), logits.grad


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("offset", [0.0, 1e4], ids=["small logits", "logits whose exponential overflows"])
def test_the_split_cross_entropy_is_torchs(worlds: Worlds, num_ranks: int, offset: float) -> None:
    logits = (seeded(S, B, V) + offset).requires_grad_()
    expected = functional.cross_entropy(logits.flatten(0, 1), targets().flatten())
    (expected * 0.5).backward()
    answers = worlds(num_ranks).run(split_loss, torch.float32, offset)
    for loss, _ in answers:
        assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(torch.cat([gradient for _, gradient in answers], -1), logits.grad, rtol=1e-4, atol=1e-6)


def test_the_split_cross_entropy_works_in_fp32_on_bf16_logits(worlds: Worlds) -> None:
    rounded = seeded(S, B, V).bfloat16()
    expected = functional.cross_entropy(rounded.float().flatten(0, 1), targets().flatten())
    answers = worlds(2).run(split_loss, torch.bfloat16, 0.0)
    assert answers[0][0] == pytest.approx(float(expected), rel=1e-5)
    assert answers[0][1].dtype == torch.bfloat16


def split_embedding(world: World, sequence: bool) -> tuple[Tensor, Tensor]:
    axis = build_mesh(Layout({"tensor": world.size}), world.rank).tensor
    whole = TokenEmbedding(V, H)
    whole.weight = nn.Parameter(seeded(V, H))
    module = VocabularyParallelEmbedding(whole, axis, sequence)
    vectors = module(targets())
    upstream = seeded(S, B, H)
    vectors.backward(shard(upstream, axis) if sequence else upstream)
    assert module.weight.grad is not None
    return vectors.detach(), module.weight.grad


@pytest.mark.parametrize("sequence", [False, True], ids=["whole sequence", "sequence parallel"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_split_embedding_is_torchs(worlds: Worlds, num_ranks: int, sequence: bool) -> None:
    weight = seeded(V, H).requires_grad_()
    expected = functional.embedding(targets(), weight)
    expected.backward(seeded(S, B, H))
    answers = worlds(num_ranks).run(split_embedding, sequence)
    vectors = torch.cat([part for part, _ in answers]) if sequence else answers[0][0]
    torch.testing.assert_close(vectors, expected.detach())
    torch.testing.assert_close(torch.cat([gradient for _, gradient in answers]), weight.grad)


def pair_of_products(
    world: World, sizes: tuple[int, int, int, int], sequence: bool, biased: bool
) -> list[list[Tensor]]:
    """Output and gradients of x, both weights and their biases: split over the axis, and plain."""
    s, b, h, f = sizes
    axis = build_mesh(Layout({"tensor": world.size}), world.rank).tensor
    torch.manual_seed(0)
    up, down = nn.Linear(h, f, bias=biased), nn.Linear(f, h, bias=biased)
    x, upstream = torch.randn(s, b, h), torch.randn(s, b, h)
    plain_x = x.clone().requires_grad_()
    plain = down(up(plain_x).tanh())
    plain.backward(upstream)
    split_up, split_down = ColumnParallelLinear(up, axis, sequence), RowParallelLinear(down, axis, sequence)
    if biased:
        split_down.bias = nn.Parameter(down.bias.detach().clone())
    split_x = (shard(x, axis) if sequence else x).clone().requires_grad_()
    split = split_down(split_up(split_x).tanh())
    split.backward(shard(upstream, axis) if sequence else upstream)
    expected = [plain.detach(), gradient_of(plain_x)]
    expected = [shard(tensor, axis) for tensor in expected] if sequence else expected
    expected += [shard(gradient_of(up.weight), axis), shard(gradient_of(down.weight), axis, dim=1)]
    measured = [split.detach(), *(gradient_of(one) for one in (split_x, split_up.weight, split_down.weight))]
    return [measured, [tensor.clone() for tensor in expected]]


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shards=some.tuples(*[some.integers(1, 4)] * 2),
    sizes=some.tuples(*[some.integers(1, 5)] * 2),
    sequence=some.booleans(),
    biased=some.booleans(),
)
def test_a_column_and_a_row_product_are_two_plain_ones(
    worlds: Worlds, shards: tuple[int, int], sizes: tuple[int, int], sequence: bool, biased: bool
) -> None:
    shape = (2 * shards[0], sizes[0], sizes[1], 2 * shards[1])
    for measured, expected in worlds(2).run(pair_of_products, shape, sequence, biased):
        for one, other in zip(measured, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def layer_by_dtensor(world: World, spec: Any, layout: ParallelPlan) -> list[tuple[str, Tensor, Tensor]]:
    """Output and gradients of a layer, split by this package and by torch's own tensor parallelism."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = build_mesh(Layout({"tensor": world.size}), world.rank)
    torch.manual_seed(0)
    ours, theirs = Layer(spec), Layer(spec)
    theirs.load_state_dict(ours.state_dict())
    for name in ("attention.qkv", "attention.projection", "feed_forward.up", "feed_forward.down"):
        place = Place(name, mesh, layout, Dropping(0.0, Randomness(0, 0, 2)))
        form = STYLES[name].form(ours.get_submodule(name), place)
        assert form is not None
        ours.set_submodule(name, form)
    plan = {"attention.qkv": ColwiseParallel(), "attention.projection": RowwiseParallel()}
    plan |= {"feed_forward.up": ColwiseParallel(), "feed_forward.down": RowwiseParallel()}
    parallelize_module(theirs, init_device_mesh("cpu", (world.size,)), plan)
    x, rotary = torch.randn(spec.seq_length, 2, spec.hidden_size), rotary_table_of(spec)
    outs = [layer(x, rotary) for layer in (ours, theirs)]
    for out in outs:
        out.square().mean().backward()
    pairs = [("output", *(out.detach() for out in outs))]
    for name, parameter in theirs.named_parameters():
        gradient = gradient_of(parameter)
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        pairs.append((name, gradient_of(ours.get_parameter(name)), local.clone()))
    return pairs


@pytest.mark.parametrize(
    "family",
    [{}, {"model.family": "llama", "model.gated_mlp": True, "model.num_query_groups": 2}],
    ids=["gpt", "llama"],
)
def test_a_split_layer_agrees_with_torchs_own_tensor_parallelism(
    family: dict[str, Any], worlds: Worlds, experiment_of: ExperimentOf
) -> None:
    for pairs in worlds(2).run(layer_by_dtensor, experiment_of(family).model, experiment_of().parallel):
        for name, ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=partial("{}: {}".format, name))


def test_a_gated_layers_shards_are_cuts_of_its_rows(experiment_of: ExperimentOf) -> None:
    """Each half of the rows computes its half of the units."""
    spec = experiment_of({"model.family": "llama", "model.gated_mlp": True}).model
    whole, half = FeedForward(spec), FeedForward(spec)
    up, down = (whole.get_parameter(f"{name}.weight").detach() for name in ("up", "down"))
    x = seeded(S, B, spec.hidden_size)
    parts = []
    for rank in range(2):
        half.up.register_parameter("weight", nn.Parameter(up.chunk(2)[rank]))
        half.down = nn.Linear(spec.ffn_hidden_size // 2, spec.hidden_size, bias=False)
        half.down.register_parameter("weight", nn.Parameter(down.chunk(2, dim=1)[rank]))
        parts.append(half(x))
    torch.testing.assert_close(parts[0] + parts[1], whole(x), rtol=1e-4, atol=1e-5)
