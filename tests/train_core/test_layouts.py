"""Every layout of 1, 2, 4 and 8 ranks trains like one rank: losses, gradients, norms and the weights afterwards."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from train_core.main_gradient import main_gradient
from train_core.train import Trainer

GLOBAL_BATCH_SIZE = 16
NUM_STEPS = 5
TRAINING = {
    "batch.global_batch_size": GLOBAL_BATCH_SIZE,
    "training.num_steps": NUM_STEPS,
    "training.clip_gradient_norm": 0.5,  # well below the norms of this model, so that clipping acts
    "training.learning_rate": 1e-2,
    # Some gradients are zero but for rounding (the bias of the keys). With the usual epsilon Adam would turn that
    # rounding into full steps, and no two orders of summation could agree.
    "training.adam_epsilon": 1e-3,
}


class Part(NamedTuple):
    """One rank's part of one parameter."""

    name: str
    split_dim: int | None
    tensor_rank: int
    gradient: np.ndarray
    weight: np.ndarray


class Run(NamedTuple):
    losses: list[float]
    gradient_norms: list[float]
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]


def train_and_tell(world: Any, experiment: Any, cache_dir: Path) -> tuple[list[float], list[float], list[Part]]:
    """Losses, norms, and this rank's parts with the gradients of the last step."""
    trainer = Trainer(experiment, world, cache_dir)
    gradients: dict[str, np.ndarray] = {}
    reduce_gradients = trainer.optimizer.reduce_gradients

    def reduce_and_keep() -> None:
        reduce_gradients()
        for name, parameter in trainer.stage.named_parameters():
            gradients[name] = main_gradient(parameter).clone().numpy()

    trainer.optimizer.reduce_gradients = reduce_and_keep
    results = [trainer.step(step) for step in range(1, NUM_STEPS + 1)]
    parts = [
        Part(
            trainer.stage.placements[name].name,
            trainer.stage.placements[name].split_dim,
            trainer.mesh.tensor.rank,
            gradients[name],
            parameter.detach().float().numpy(),
        )
        for name, parameter in trainer.stage.named_parameters()
    ]
    return [result.loss for result in results], [result.gradient_norm for result in results], parts


def assembled(answers: list[Any], tensor_size: int) -> Run:
    """The whole model from all ranks' parts; ranks that hold the same part must agree on it."""
    losses, norms, _ = answers[0]
    assert all(answer[:2] == (losses, norms) for answer in answers), "ranks disagree about the loss or the norm"
    held: dict[tuple[str, int | None, int], Part] = {}
    for _, _, parts in answers:
        for part in parts:
            key = (part.name, part.split_dim, part.tensor_rank if part.split_dim is not None else 0)
            same = held.setdefault(key, part)
            np.testing.assert_allclose(part.weight, same.weight, rtol=1e-6, atol=1e-7, err_msg=part.name)
            np.testing.assert_allclose(part.gradient, same.gradient, rtol=1e-4, atol=1e-7, err_msg=part.name)
    gradients, weights = {}, {}
    for name, split_dim, tensor_rank in held:
        if tensor_rank > 0:
            continue
        pieces = [held[name, split_dim, rank] for rank in range(tensor_size if split_dim is not None else 1)]
        gradients[name] = np.concatenate([piece.gradient for piece in pieces], axis=split_dim or 0)
        weights[name] = np.concatenate([piece.weight for piece in pieces], axis=split_dim or 0)
    return Run(losses, norms, gradients, weights)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def one_rank(worlds: Any, experiment_of: Any, cache_dir: Path) -> Any:
    """The reference in one precision, trained once."""
    known: dict[str, Run] = {}

    def reference(dtype: str) -> Run:
        if dtype not in known:
            experiment = experiment_of(TRAINING | {"batch.micro_batch_size": 4, "precision.dtype": dtype})
            known[dtype] = assembled(worlds(1).run(train_and_tell, experiment, cache_dir), 1)
        return known[dtype]

    return reference


class Layout(NamedTuple):
    tensor: int
    pipeline: int
    data: int
    sequence_parallel: bool = False
    zero_stage: int = 0
    recompute: str = "none"
    num_micro_batches: int | None = None

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    def values(self, dtype: str = "fp32") -> dict[str, Any]:
        num_micro_batches = self.num_micro_batches or max(2, self.pipeline)
        return TRAINING | {
            "precision.dtype": dtype,
            "parallel.world_size": self.num_ranks,
            "parallel.tensor_parallel_size": self.tensor,
            "parallel.pipeline_parallel_size": self.pipeline,
            "parallel.sequence_parallel": self.sequence_parallel,
            "parallel.zero_stage": self.zero_stage,
            "parallel.recompute": self.recompute,
            "batch.micro_batch_size": GLOBAL_BATCH_SIZE // (self.data * num_micro_batches),
        }


def every_layout(num_ranks: int) -> list[Layout]:
    """All splits of the ranks over the axes, with all options that mean something there."""
    return [
        Layout(tensor, pipeline, data, sequence_parallel, zero_stage, recompute)
        for tensor, pipeline, data in product((1, 2, 4, 8), repeat=3)
        if tensor * pipeline * data == num_ranks
        for sequence_parallel in ((False, True) if tensor > 1 else (False,))
        for zero_stage in ((0, 1) if data > 1 else (0,))
        for recompute in ("none", "selective", "full")
    ]


LAYOUTS = [
    *every_layout(1),
    *every_layout(2),
    *every_layout(4),
    Layout(1, 2, 1, num_micro_batches=8),  # more micro-batches than the pipeline holds
    Layout(1, 4, 1, num_micro_batches=2),  # fewer micro-batches than stages
    Layout(1, 4, 1, num_micro_batches=1),
    # Every split of 8 ranks, every option at least twice.
    Layout(8, 1, 1, sequence_parallel=True, num_micro_batches=1),
    Layout(4, 2, 1, sequence_parallel=False, recompute="full"),
    Layout(4, 1, 2, sequence_parallel=True, zero_stage=1),
    Layout(2, 4, 1, sequence_parallel=True, recompute="selective"),
    Layout(2, 2, 2, sequence_parallel=True, zero_stage=1, recompute="full"),
    Layout(2, 2, 2, sequence_parallel=False, zero_stage=0),
    Layout(2, 1, 4, sequence_parallel=True, zero_stage=0, recompute="selective"),
    Layout(1, 8, 1),
    Layout(1, 4, 2, zero_stage=1),
    Layout(1, 2, 4, zero_stage=1, recompute="full"),
    Layout(1, 1, 8, zero_stage=1),
    Layout(1, 1, 8, zero_stage=0, recompute="selective"),
]


def relative_error(measured: dict[str, np.ndarray], expected: dict[str, np.ndarray], name: str) -> float:
    """Of one tensor; tensors that are nothing but rounding are held against the whole model's size."""
    whole = np.sqrt(sum(np.square(tensor).sum() for tensor in expected.values()))
    size = max(float(np.linalg.norm(expected[name])), 1e-2 * float(whole))
    return float(np.linalg.norm(measured[name] - expected[name])) / size


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(str(part) for part in layout))
def test_a_layout_trains_like_one_rank(
    layout: Layout, worlds: Any, experiment_of: Any, one_rank: Any, cache_dir: Path
) -> None:
    expected = one_rank("fp32")
    answers = worlds(layout.num_ranks).run(train_and_tell, experiment_of(layout.values()), cache_dir)
    measured = assembled(answers, layout.tensor)
    np.testing.assert_allclose(measured.losses, expected.losses, rtol=1e-5)
    np.testing.assert_allclose(measured.gradient_norms, expected.gradient_norms, rtol=1e-5)
    assert measured.gradients.keys() == expected.gradients.keys()
    for name in expected.gradients:
        assert relative_error(measured.gradients, expected.gradients, name) < 1e-5, name
        assert relative_error(measured.weights, expected.weights, name) < 1e-5, name


@pytest.mark.parametrize(
    "layout",
    [
        Layout(1, 1, 1, recompute="full"),
        Layout(2, 1, 1, sequence_parallel=True),
        Layout(1, 2, 1, recompute="selective"),
        Layout(2, 1, 2, zero_stage=1),
        Layout(2, 2, 1, sequence_parallel=True, recompute="full"),
        Layout(1, 2, 2, zero_stage=1),
    ],
    ids=lambda layout: "-".join(str(part) for part in layout),
)
def test_bf16_agrees_within_its_own_rounding(
    layout: Layout, worlds: Any, experiment_of: Any, one_rank: Any, cache_dir: Path
) -> None:
    """bf16 keeps 8 bits: 0.4 % a rounding. Losses average over tokens, gradient tensors over many roundings."""
    expected = one_rank("bf16")
    answers = worlds(layout.num_ranks).run(train_and_tell, experiment_of(layout.values("bf16")), cache_dir)
    measured = assembled(answers, layout.tensor)
    np.testing.assert_allclose(measured.losses, expected.losses, rtol=2e-3)
    np.testing.assert_allclose(measured.gradient_norms, expected.gradient_norms, rtol=2e-2)
    for name in expected.gradients:
        assert relative_error(measured.gradients, expected.gradients, name) < 5e-2, name
        assert relative_error(measured.weights, expected.weights, name) < 1e-2, name


def test_the_weights_did_move(one_rank: Any, worlds: Any, experiment_of: Any, cache_dir: Path) -> None:
    losses = one_rank("fp32").losses
    assert losses[-1] < losses[0] - 0.05
    assert all(torch.isfinite(torch.from_numpy(tensor)).all() for tensor in one_rank("fp32").weights.values())
