"""Every layout of 1, 2, 4 and 8 ranks trains like one rank: losses, gradients, norms and the weights afterwards.

Layout, schedule and ZeRO stage meet in all combinations that the trainer runs. On 1 and 2 ranks each also meets every
recomputation and model family; on 4 and 8 those are dealt out so that each meets every value of every other option, and
on 8 so is sequence parallelism. GPTs tie their embeddings, Llamas do not; stages and chunks are uneven. `make test-all`
runs them all; `make test` leaves them to those that `test_random_layouts` draws, and runs what that does not draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import NUM_STEPS, Layout, covering_layouts, matrix
from train_core.process.world import World
from train_core.training.trainer import Trainer

RUN_TOGETHER = 6
"""Layouts that a world trains one after the other before it answers."""
FP32 = {"losses": 1e-5, "norms": 1e-5, "gradients": 1e-5, "weights": 1e-5}
BF16 = {"losses": 2e-3, "norms": 2e-2, "gradients": 5e-2, "weights": 1e-2}


class Piece(NamedTuple):
    """A box of one parameter of the whole model, as one rank updates it. The gradient is the last step's."""

    name: str
    shape: tuple[int, ...]
    where: tuple[slice, ...]
    gradient: np.ndarray
    weight: np.ndarray


class Run(NamedTuple):
    losses: list[float]
    gradient_norms: list[float]
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]


Answer = tuple[list[float], list[float], list[Piece]]


def train_and_tell(world: World, experiments: Sequence[Experiment], cache_dir: Path) -> list[Answer]:
    """Of each experiment this rank's losses, norms and pieces."""
    return [_train(world, experiment, cache_dir) for experiment in experiments]


def _train(world: World, experiment: Experiment, cache_dir: Path) -> Answer:
    trainer = Trainer(experiment, world, cache_dir)
    optimizer, gradients = trainer.optimizer, list[torch.Tensor]()
    reduced_gradients = optimizer.reduced_gradients

    def reduce_and_keep() -> list[torch.Tensor]:
        reduced = reduced_gradients()
        gradients[:] = [gradient.float() / optimizer.loss_scale.scale for gradient in reduced]
        return reduced

    optimizer.reduced_gradients = reduce_and_keep  # type: ignore[method-assign]
    results = [trainer.step(step) for step in range(1, NUM_STEPS + 1)]
    parts = zip(trainer.replicas.boxes(), gradients, trainer.replicas.own_weights(), strict=True)
    pieces = [
        Piece(
            box.name,
            box.shape,
            tuple(slice(first, first + size) for first, size in zip(box.offsets, box.sizes, strict=True)),
            box.of(gradient).numpy(),
            box.of(weights.detach()).float().numpy(),
        )
        for boxes, gradient, weights in parts
        for box in boxes
    ]
    return [result.loss for result in results], [result.gradient_norm for result in results], pieces


def assembled(answers: Sequence[Answer]) -> Run:
    """The whole model from all ranks' pieces; ranks that update the same piece must agree on it."""
    losses, norms, _ = answers[0]
    assert all(answer[:2] == (losses, norms) for answer in answers), "ranks disagree about the loss or the norm"
    gradients: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    for piece in (piece for _, _, pieces in answers for piece in pieces):
        for whole, part in ((gradients, piece.gradient), (weights, piece.weight)):
            held = whole.setdefault(piece.name, np.full(piece.shape, np.nan, dtype=np.float32))[piece.where]
            np.testing.assert_allclose(part, np.where(np.isnan(held), part, held), rtol=1e-4, atol=1e-7)
            held[...] = part
    assert not any(np.isnan(whole).any() for whole in weights.values()), "a part of a weight is on no rank"
    return Run(losses, norms, gradients, weights)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def train_all(
    worlds: Worlds, experiment_of: ExperimentOf, cache_dir: Path
) -> Callable[[int, list[dict[str, Any]]], list[Run]]:
    """Train experiments, given by their values, on a number of ranks; several in a world."""

    def train(num_ranks: int, values: list[dict[str, Any]]) -> list[Run]:
        runs = []
        for first in range(0, len(values), RUN_TOGETHER):
            experiments = [experiment_of(one) for one in values[first : first + RUN_TOGETHER]]
            answers = worlds(num_ranks).run(train_and_tell, experiments, cache_dir)
            runs += [assembled(of_ranks) for of_ranks in zip(*answers, strict=True)]
        return runs

    return train


@pytest.fixture(scope="module")
def one_rank(train_all: Any) -> Callable[[Layout, str], Run]:
    """The model of a layout on one rank, each trained once."""
    known: dict[Any, Run] = {}

    def reference(layout: Layout, dtype: str) -> Run:
        key = dtype, tuple(layout.model().items())
        if key not in known:
            (known[key],) = train_all(1, [layout.values_on_one_rank(dtype)])
        return known[key]

    return reference


def relative_error(measured: dict[str, np.ndarray], expected: dict[str, np.ndarray], name: str) -> float:
    """Of one tensor; tensors that are nothing but rounding are held against the whole model's size."""
    whole = np.sqrt(sum(np.square(tensor).sum() for tensor in expected.values()))
    size = max(float(np.linalg.norm(expected[name])), 1e-2 * float(whole))
    return float(np.linalg.norm(measured[name] - expected[name])) / size


def assert_alike(
    measured: Run, expected: Run, *, losses: float, norms: float, gradients: float, weights: float
) -> None:
    """Each within its relative tolerance."""
    np.testing.assert_allclose(measured.losses, expected.losses, rtol=losses)
    np.testing.assert_allclose(measured.gradient_norms, expected.gradient_norms, rtol=norms)
    assert measured.gradients.keys() == expected.gradients.keys()
    for name in expected.gradients:
        assert relative_error(measured.gradients, expected.gradients, name) < gradients, name
        assert relative_error(measured.weights, expected.weights, name) < weights, name


@pytest.fixture(scope="module")
def assert_like_one_rank(train_all: Any, one_rank: Any) -> Callable[..., None]:
    def check(layouts: list[Layout], dtype: str, **tolerances: float) -> None:
        for layout, run in zip(
            layouts, train_all(layouts[0].num_ranks, [one.values(dtype) for one in layouts]), strict=True
        ):
            try:
                assert_alike(run, one_rank(layout, dtype), **tolerances)
            except AssertionError as error:
                error.add_note(f"in {layout}")
                raise

    return check


SPLITS = [split for split in product((1, 2, 4, 8), repeat=3) if np.prod(split) <= 8]


@pytest.fixture(scope="module")
def all_layouts(experiment_of: ExperimentOf) -> list[Layout]:
    return matrix(experiment_of)


@pytest.fixture(scope="module")
def layouts_of(
    all_layouts: list[Layout], pytestconfig: pytest.Config
) -> Callable[[tuple[int, int, int]], list[Layout]]:
    """The layouts of one split over (tensor, pipeline, data)."""
    every = bool(pytestconfig.getoption("all_cases"))
    chosen = all_layouts if every else covering_layouts(all_layouts)
    return lambda split: [layout for layout in chosen if layout[:3] == split]


@pytest.mark.thorough  # than test_random_layouts, which draws from the same options
@pytest.mark.parametrize("split", SPLITS, ids="tp{0[0]}-pp{0[1]}-dp{0[2]}".format)
def test_a_layout_trains_like_one_rank(split: tuple[int, int, int], layouts_of: Any, assert_like_one_rank: Any) -> None:
    assert_like_one_rank(layouts_of(split), "fp32", **FP32)


def test_every_recomputation_and_family_meets_every_other_option(all_layouts: list[Layout]) -> None:
    """On 4 and 8 ranks, where they are dealt out."""
    dealt = [layout for layout in all_layouts if layout.num_ranks > 2]
    options = ("schedule", "sequence_parallel", "zero_stage", "recompute", "family")
    values = {name: {getattr(layout, name) for layout in dealt} for name in options}
    for one, other in [*product(options[3:], options[:3]), ("recompute", "family")]:
        met = {(getattr(layout, one), getattr(layout, other)) for layout in dealt}
        assert met == set(product(values[one], values[other]))


OTHER_NUMBERS_OF_MICRO_BATCHES = [
    Layout(1, 2, 1, num_micro_batches=16),  # more than the pipeline holds
    Layout(1, 2, 1, "zero-bubble", num_micro_batches=16),
    Layout(1, 2, 1, "interleaved", num_micro_batches=8),
    Layout(1, 4, 1, num_micro_batches=2),  # fewer than stages
    Layout(1, 4, 1, num_micro_batches=1),
    Layout(1, 4, 1, "zero-bubble", num_micro_batches=2),
    Layout(1, 4, 1, "zero-bubble", num_micro_batches=8),
    Layout(1, 4, 1, "interleaved", num_micro_batches=8),
    Layout(1, 4, 1, "interleaved", num_micro_batches=2),
    Layout(1, 4, 1, "interleaved", num_micro_batches=1),
]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_any_number_of_micro_batches_trains_like_one_rank(num_ranks: int, assert_like_one_rank: Any) -> None:
    layouts = [one for one in OTHER_NUMBERS_OF_MICRO_BATCHES if one.num_ranks == num_ranks]
    assert_like_one_rank(layouts, "fp32", **FP32)


UNEVEN_CHUNKS = [
    Layout(1, 2, 1, "interleaved", layers_per_stage=(1, 1)),  # the embedding alone, and the head alone
    Layout(1, 2, 1, "interleaved", layers_per_stage=(1, 1), recompute=("full", 1), family="llama"),
    Layout(1, 2, 1, "interleaved", layers_per_stage=(5, 2), recompute=("pointwise", 2), num_micro_batches=8),
    Layout(1, 4, 1, "interleaved", layers_per_stage=(1, 2, 2, 1)),
    Layout(1, 4, 1, "interleaved", layers_per_stage=(1, 3, 2, 4), num_micro_batches=2, family="llama"),
    Layout(2, 2, 1, "interleaved", layers_per_stage=(1, 2), sequence_parallel=True, recompute=("pointwise", 1)),
    Layout(1, 2, 2, "interleaved", layers_per_stage=(2, 1), zero_stage=2),
]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_uneven_chunks_train_like_one_rank(num_ranks: int, assert_like_one_rank: Any) -> None:
    assert_like_one_rank([one for one in UNEVEN_CHUNKS if one.num_ranks == num_ranks], "fp32", **FP32)


BIASED = [
    Layout(2, 1, 1, sequence_parallel=True, recompute=("pointwise", 1), family="qwen2"),
    Layout(1, 2, 1, "zero-bubble", recompute=("full", 1), family="qwen2"),
    Layout(1, 1, 2, zero_stage=3, family="qwen2"),
    Layout(2, 1, 2, zero_stage=2, family="qwen2"),
    Layout(2, 2, 1, "interleaved", sequence_parallel=True, recompute=("selective", 1), family="qwen2"),
    Layout(4, 1, 1, family="qwen2"),
]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_biases_of_queries_keys_and_values_train_like_those_of_one_rank(
    num_ranks: int, assert_like_one_rank: Any, one_rank: Any
) -> None:
    layouts = [one for one in BIASED if one.num_ranks == num_ranks]
    assert_like_one_rank(layouts, "fp32", **FP32)
    biases = [value for name, value in one_rank(layouts[0], "fp32").weights.items() if name.endswith("bias")]
    assert len(biases) == layouts[0].num_layers
    assert all(np.abs(bias).max() > 1e-4 for bias in biases), "they start at zero, and did not move"


IN_BF16 = [
    Layout(1, 1, 1, recompute=("full", 1)),
    Layout(2, 1, 1, sequence_parallel=True),
    Layout(1, 2, 1, "zero-bubble", recompute=("selective", 1)),
    Layout(2, 1, 2, zero_stage=1),
    Layout(2, 2, 1, "interleaved", sequence_parallel=True, recompute=("full", 1)),
    Layout(1, 2, 2, zero_stage=1),
    Layout(1, 1, 1, recompute=("pointwise", 1), family="llama"),
    Layout(1, 2, 1, "zero-bubble", recompute=("pointwise", 1)),
    Layout(1, 1, 2, zero_stage=3, recompute=("pointwise", 1)),
]


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 1, 4])
def test_bf16_agrees_within_its_own_rounding(num_ranks: int, assert_like_one_rank: Any) -> None:
    """bf16 keeps 8 bits: 0.4 % a rounding. Losses average over tokens, gradient tensors over many roundings."""
    assert_like_one_rank([one for one in IN_BF16 if one.num_ranks == num_ranks], "bf16", **BF16)


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_the_weights_did_move(family: str, one_rank: Any) -> None:
    run = one_rank(Layout(1, 1, 1, family=family), "fp32")
    assert run.losses[-1] < run.losses[0] - 0.05
    assert min(run.gradient_norms) > 0.5, "clipping did not act"
    assert all(np.isfinite(tensor).all() for tensor in run.weights.values())


NORMED = [
    Layout(2, 1, 1, family="qwen3"),
    Layout(2, 1, 1, sequence_parallel=True, recompute=("pointwise", 1), family="qwen3"),
    Layout(1, 1, 2, zero_stage=3, family="qwen3"),
    Layout(1, 1, 1, context=2, family="qwen3"),
    Layout(2, 2, 1, "zero-bubble", recompute=("full", 1), family="qwen3"),
    Layout(4, 1, 1, recompute=("selective", 1), family="qwen3"),
    Layout(2, 1, 2, sequence_parallel=True, zero_stage=2, family="qwen3"),
]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_norms_of_heads_train_like_those_of_one_rank(num_ranks: int, assert_like_one_rank: Any) -> None:
    assert_like_one_rank([one for one in NORMED if one.num_ranks == num_ranks], "fp32", **FP32)
