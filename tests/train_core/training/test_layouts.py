"""What `test_random_layouts` does not draw, or what its oracle does not know, trains like one rank: losses, gradient
norms, first moments of the gradients and the weights afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import Layout
from tests.train_core.training.test_random_layouts import Answer, of_kind, whole_tensors
from tests.train_core.training.test_random_layouts import train_and_tell as train_one
from train_core.process.world import World

FP32 = {"losses": 1e-5, "norms": 1e-5, "moments": 1e-5, "weights": 1e-5}
BF16 = {"losses": 2e-3, "norms": 2e-2, "moments": 5e-2, "weights": 1e-2}


class Run(NamedTuple):
    losses: list[float]
    gradient_norms: list[float]
    moments: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]


def train_and_tell(world: World, experiments: Sequence[Experiment], cache_dir: Path) -> list[Answer]:
    """Of each experiment this rank's losses, norms and pieces."""
    return [train_one(world, experiment, cache_dir) for experiment in experiments]


def assembled(answers: Sequence[Answer]) -> Run:
    """The whole model from all ranks' pieces."""
    tensors = whole_tensors(answers)
    return Run(*answers[0][:2], of_kind("first_moments", tensors), of_kind("weights", tensors))


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def train_all(
    worlds: Worlds, experiment_of: ExperimentOf, cache_dir: Path
) -> Callable[[int, list[dict[str, Any]]], list[Run]]:
    """Train experiments, given by their values, on a number of ranks."""

    def train(num_ranks: int, values: list[dict[str, Any]]) -> list[Run]:
        answers = worlds(num_ranks).run(train_and_tell, [experiment_of(one) for one in values], cache_dir)
        return [assembled(of_ranks) for of_ranks in zip(*answers, strict=True)]

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


def assert_alike(measured: Run, expected: Run, *, losses: float, norms: float, moments: float, weights: float) -> None:
    """Each within its relative tolerance."""
    np.testing.assert_allclose(measured.losses, expected.losses, rtol=losses)
    np.testing.assert_allclose(measured.gradient_norms, expected.gradient_norms, rtol=norms)
    assert measured.moments.keys() == expected.moments.keys()
    for name in expected.moments:
        assert relative_error(measured.moments, expected.moments, name) < moments, name
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
