"""Products of cast operands: what a cast rounds to, that an emulation multiplies as the kernel does, and that tensor
ranks round as one rank does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conf.errors import ConfigError, InfeasiblePlan
from conf.plan.experiment import Experiment
from costs.estimate import estimate, setting_of
from tests.composed import load
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import LATENT_LLAMA, MIXTURE, Layout
from tests.train_core.training.test_layouts import assembled, assert_alike, train_and_tell
from train_core.model.mixture import ExpertWeights
from train_core.parallel.collectives import Axis
from train_core.parallel.expert_parallel import Groups, _multiply
from train_core.parallel.narrow import (
    E4M3,
    E5M2,
    LEAST,
    ScaledProducts,
    cast,
    largest_values,
    narrow_products,
    require_narrow_products,
)
from train_core.process.world import World
from train_core.training.trainer import Trainer

EMULATED = {"precision.dtype": "bf16", "precision.matmul_recipe": "fp8-tensorwise", "precision.emulate": True}
NUM_STEPS = 40
DIGITS = {E4M3: (3, -6), E5M2: (2, -14)}
"""Bits behind the point, and the exponent below which numbers are evenly spaced."""


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """To the nearest number of the type, to the even one of two, in arithmetic of its own."""
    bits, least = DIGITS[dtype]
    exponent = np.maximum(np.frexp(values.double().numpy())[1] - 1, least)
    spacing = np.exp2(exponent - bits)
    return torch.from_numpy(np.rint(values.double().numpy() / spacing) * spacing)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_a_cast_rounds_to_the_nearest_as_torch_does(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(64, 48, generator=random) * torch.exp2(torch.randint(-20, 4, (64, 48), generator=random))
    narrow, inverse = cast(x, x.abs().max(), dtype)
    scaled = x * (torch.finfo(dtype).max / x.abs().max())
    assert (narrow.double() == rounded(scaled, dtype)).all()
    assert torch.equal(narrow.view(torch.uint8), scaled.to(dtype).view(torch.uint8))
    assert narrow.double().abs().max() == torch.finfo(dtype).max
    assert float(inverse) == pytest.approx(float(x.abs().max()) / torch.finfo(dtype).max)


def test_zeros_stay_zeros_and_what_is_not_finite_is_seen() -> None:
    products, weight = ScaledProducts(by_rows=False, emulate=True), torch.randn(16, 16)
    assert not products.linear(torch.zeros(3, 16), weight, None).any()
    assert float(cast(torch.zeros(2, 2), torch.tensor(0.0), E4M3)[1]) == pytest.approx(LEAST / 448)
    for bad in (float("inf"), float("nan")):
        x = torch.ones(3, 16)
        x[1, 2] = bad
        assert products.linear(x, weight, None).isnan().any()


@pytest.mark.parametrize("by_rows", [False, True])
def test_an_emulation_multiplies_as_the_kernel_does(by_rows: bool) -> None:
    x, weight, grad_out = (torch.randn(*shape).bfloat16() for shape in ((2, 16, 64), (48, 64), (2, 16, 48)))
    bias = torch.randn(48).bfloat16()
    kernel, emulation = (ScaledProducts(by_rows, emulate) for emulate in (False, True))
    left, right = grad_out.flatten(0, -2).t(), x.flatten(0, -2)
    for made, expected, exact in (
        (*(each.linear(x, weight, bias) for each in (kernel, emulation)), x @ weight.t() + bias),
        (*(each.input_gradient(grad_out, weight) for each in (kernel, emulation)), grad_out @ weight),
        (*(each.weight_gradient(left, right, torch.float32) for each in (kernel, emulation)), left @ right),
    ):
        assert made.shape == expected.shape == exact.shape
        assert made.dtype == expected.dtype
        torch.testing.assert_close(made.float(), expected.float(), rtol=2**-6, atol=2**-6)  # last bits of bf16
        # e5m2 keeps three bits of a number, so that each is off by 1/8 at most.
        assert float((expected - exact).norm() / exact.norm()) < 0.08


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch's own use
def test_compiled_casts_round_as_others_do_in_either_order() -> None:
    for dtype, by_rows, is_transposed in ((E4M3, True, True), (E5M2, False, False)):
        x = torch.randn(96, 48).bfloat16()
        x = x.t() if is_transposed else x
        largest = largest_values(x, 1 if by_rows else None)
        (plain, inverse), (compiled, again) = (cast(x, largest, dtype, compiles=compiles) for compiles in (False, True))
        assert compiled.is_contiguous()
        assert torch.equal(compiled.view(torch.uint8), plain.view(torch.uint8))
        assert torch.equal(again, inverse)


def cast_parts(world: World, x: Tensor, weight: Tensor) -> list[Tensor]:
    """The cast part of x and of the weight that a rank has of the features, and the sum of all ranks' products."""
    import torch.distributed as dist

    axis = Axis(world.size, world.rank, dist.group.WORLD)
    x, weight = (tensor.chunk(world.size, dim=1)[world.rank].contiguous() for tensor in (x, weight))
    shared = ScaledProducts(by_rows=False, emulate=True).largest(axis, x, weight)
    parts = [
        cast(each, largest, E4M3)[0] for each, largest in zip((x, weight), shared, strict=True) if largest is not None
    ]
    return [part.view(torch.uint8) for part in parts]


def test_tensor_ranks_cast_their_parts_as_one_rank_casts_the_whole(worlds: Worlds) -> None:
    x, weight = torch.randn(32, 64), torch.randn(48, 64)
    answers = worlds(2).run(cast_parts, x, weight)
    for index, whole in enumerate((x, weight)):
        together = torch.cat([answer[index] for answer in answers], dim=1)
        assert torch.equal(together, cast(whole, whole.abs().max(), E4M3)[0].view(torch.uint8))


FP8 = {"losses": 4e-3, "norms": 4e-2, "moments": 1.5e-1, "weights": 1e-2}
"""Twice what layouts in bf16 are allowed, and thrice for gradients: where sums differ in a last bit, a number may be
rounded the other way in fp8, by a sixteenth of it."""
LAYOUTS = [
    Layout(2, 1, 1, sequence_parallel=True),
    Layout(2, 1, 1, recompute=("pointwise", 1), family="llama"),
    Layout(1, 1, 2, family="mixture"),
    Layout(1, 1, 2, family="mixture", expert=2),
    Layout(2, 1, 1, family="latent"),
    Layout(2, 2, 1, "zero-bubble", family="llama"),
    Layout(2, 1, 2, zero_stage=3),
    Layout(1, 2, 2, zero_stage=2),
]
"""Experts that one rank of the axis holds: on several, other tokens would share a scale."""


@pytest.mark.one_in(5)
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"{'-'.join(map(str, one[:6]))}-{one.family}")
def test_layouts_agree_with_one_rank_where_tensors_have_one_scale(
    layout: Layout, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """The scale of activations is that of a micro-batch, which is of one size in all of them."""
    more = EMULATED | {"batch.micro_batch_size": 2}
    answers = worlds(layout.num_ranks).run(train_and_tell, [experiment_of(layout.values("bf16") | more)], tmp_path)
    alone = worlds(1).run(train_and_tell, [experiment_of(layout.values_on_one_rank("bf16") | more)], tmp_path)
    of_ranks, of_one = (assembled([run for (run,) in told]) for told in (answers, alone))
    assert_alike(of_ranks, of_one, **FP8)


def losses(world: World, experiment: Experiment, cache_dir: Path) -> list[float]:
    trainer = Trainer(experiment, world, cache_dir)
    return [trainer.step(step).loss for step in range(1, NUM_STEPS + 1)]


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "family"),
    [("fp8-tensorwise", {}), ("fp8-rowwise", {}), ("fp8-tensorwise", MIXTURE | LATENT_LLAMA)],
    ids=["tensorwise", "rowwise", "experts behind latent attention"],
)
def test_a_training_in_fp8_follows_that_in_bf16(
    recipe: str, family: dict[str, Any], worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values = family | {
        "precision.dtype": "bf16",
        "model.num_layers": 2,
        "model.hidden_size": 64,
        "model.ffn_hidden_size": 128,
        "batch.global_batch_size": 16,
        "batch.micro_batch_size": 8,
        "training.num_steps": NUM_STEPS,
        "training.learning_rate": 1.5e-3,
    }
    narrow = EMULATED | {"precision.matmul_recipe": recipe}
    wide, fp8 = (worlds(1).run(losses, experiment_of(values | each), tmp_path)[0] for each in ({}, narrow))
    assert fp8 != wide
    assert wide[-1] < 0.7 * wide[0]
    # Seen: 0.15 % and 0.05 % at most.
    assert fp8 == pytest.approx(wide, rel=0.005)
    assert np.mean(fp8[-10:]) == pytest.approx(np.mean(wide[-10:]), rel=0.002)


def test_ends_of_the_model_multiply_in_the_type_of_the_weights(experiment_of: ExperimentOf) -> None:
    precision = experiment_of(EMULATED | {"precision.wide_layers": 1}).precision
    names = ["embedding.tokens", "head", *(f"layers.{index}.attention.qkv" for index in range(4))]
    assert [narrow_products(precision, name, 4) is not None for name in names] == [False] * 3 + [True] * 2 + [False]


def test_an_emulation_is_priced_as_wide_products_and_kernels_as_before(experiment_of: ExperimentOf) -> None:
    emulated, wide = experiment_of(EMULATED), experiment_of({"precision.dtype": "bf16"})
    assert estimate(emulated) == estimate(wide)
    fp8 = load(["model=gpt-22b", "cluster=dgx-h100", "precision=fp8", "batch.global_batch_size=64"]).experiment()
    assert setting_of(fp8).matmul_recipe == "fp8-tensorwise"


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        (
            ["model=deepseek-v2", "model.num_layers=2", "precision=fp8"],
            InfeasiblePlan,
            r"has no peak for fp8 .*takes precision.emulate=true",
        ),
        (["precision=fp8"], InfeasiblePlan, r"has no peak for fp8 .*Use .*=null, .*takes precision.emulate=true"),
        (["precision.emulate=true"], ConfigError, r"precision.emulate = True: .*Give precision.matmul_recipe="),
        (["precision.wide_layers=1"], ConfigError, r"precision.wide_layers = 1: .*Give precision.matmul_recipe="),
        (
            ["precision=nvfp4", "precision.emulate=true"],
            InfeasiblePlan,
            r"supported by trisweep: it scales each tensor",
        ),
        (
            ["precision=fp8", "cluster=dgx-h100", "model.ffn_hidden_size=136"],
            InfeasiblePlan,
            r"multiple of 16 elements, and the feed-forward width of a tensor rank are 136",
        ),
        (
            ["model=moe-proxy", "precision=fp8", "cluster=dgx-h100", "model.experts.ffn_hidden_size=24"],
            InfeasiblePlan,
            r"multiple of 16 elements, and model.experts.ffn_hidden_size are 24",
        ),
    ],
)
def test_what_is_not_run_is_refused_with_a_remedy(overrides: list[str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load(["model=tiny", "cluster=local", *overrides]).experiment()


def test_a_device_whose_torch_lacks_the_kernel_is_refused(
    experiment_of: ExperimentOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("torch._scaled_mm is only supported on newer devices")

    precision = experiment_of(EMULATED).precision.model_copy(update={"emulate": False})
    require_narrow_products(precision, torch.device("cpu"))
    monkeypatch.setattr(torch, "_scaled_mm", missing)
    with pytest.raises(ConfigError, match=r"newer devices\)\. Use .*=null, or precision.emulate=true"):
        require_narrow_products(precision, torch.device("cpu"))


@pytest.mark.parametrize("by_rows", [False, True])
def test_each_expert_is_multiplied_as_a_linear_layer_of_its_own(by_rows: bool) -> None:
    """Forward, the gradient of the rows and that of the matrices, by the kernel; one expert has no rows."""
    narrow, sizes = ScaledProducts(by_rows, emulate=False), [5, 0, 19]
    rows, grad_out = torch.randn(24, 32).bfloat16().requires_grad_(), torch.randn(24, 48).bfloat16()
    experts = ExpertWeights(torch.randn(3 * 48, 32).bfloat16())
    weight = experts.weight
    out = _multiply(rows, experts, Groups(sizes, torch.tensor(sizes)), narrow)
    out.backward(grad_out)
    assert rows.grad is not None
    assert weight.grad is not None
    parts = zip(rows.split(sizes), out.split(sizes), rows.grad.split(sizes), grad_out.split(sizes), strict=True)
    for (x, y, dx, dy), matrix, made in zip(parts, weight.chunk(3), weight.grad.chunk(3), strict=True):
        if not x.size(0):
            assert not made.any()
            continue
        assert torch.equal(y, narrow.linear(x, matrix, None))
        assert torch.equal(dx, narrow.input_gradient(dy, matrix))
        assert torch.equal(made, narrow.weight_gradient(dy.t(), x, torch.bfloat16))
        exact = dy.t() @ x.detach()
        assert float((made - exact).norm() / exact.norm()) < 0.08


def test_rows_have_scales_of_their_own() -> None:
    x = torch.tensor([[1.0, -8.0], [0.5, 0.25]])
    assert largest_values(x, dim=1).tolist() == [[8.0], [0.5]]
