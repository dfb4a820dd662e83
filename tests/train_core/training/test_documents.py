"""Separate documents train in every layout as if each were a sequence of its own, which the oracle makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conf.plan.experiment import Experiment
from costs.counts.flops import attention_core_forward_flops, model_flops
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import Layout
from tests.train_core.training.oracle import Trained, Update, first_weights, losses_of
from tests.train_core.training.test_random_layouts import assembled, require_like, train_and_tell
from train_core.data.tokens import hash_of, place_in_permutation
from train_core.process.world import World
from train_core.training.train import train
from train_core.trial.measurement import Performance

MEGATRON = Path(__file__).parents[1] / "data" / "megatron" / "uint16"
LAYOUTS = [
    Layout(1, 1, 1),
    Layout(1, 1, 1, recompute=("selective", 1), family="llama"),
    Layout(2, 1, 1, sequence_parallel=True),
    Layout(2, 1, 1, family="llama", recompute=("pointwise", 1)),
    Layout(1, 1, 2, zero_stage=3, recompute=("full", 2)),
    Layout(1, 1, 2, zero_stage=2, family="llama"),
    Layout(1, 2, 1, "gpipe", recompute=("selective", 1)),
    Layout(1, 2, 1, "interleaved", family="llama"),
    Layout(2, 2, 1, "1f1b", sequence_parallel=True, family="llama"),
    Layout(1, 4, 1, "zero-bubble"),
    Layout(1, 1, 1, context=2),
    Layout(1, 1, 1, context=2, context_exchange="gather", family="llama"),
    Layout(2, 1, 1, context=2, sequence_parallel=True, zero_stage=1),
    Layout(1, 2, 1, "interleaved", context=2, context_exchange="gather", family="llama", recompute=("full", 1)),
    Layout(1, 1, 1, context=4, zero_stage=3, family="llama"),
    Layout(2, 1, 1, context=2, sequence_parallel=True, family="latent"),
]


WINDOWED = [
    Layout(1, 1, 1, context=2, context_exchange="gather", family="llama"),
    Layout(2, 1, 1, sequence_parallel=True, zero_stage=1, family="llama", recompute=("selective", 1)),
    Layout(1, 2, 1, context=2, zero_stage=2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of files of 1 to 40 bytes, and one that is longer than several sequences."""
    folder, random = tmp_path_factory.mktemp("text"), np.random.default_rng(1)
    lengths = [*random.integers(1, 40, size=150), 130, 0, *random.integers(1, 40, size=50)]
    for number, length in enumerate(lengths):
        letters = random.integers(97, 123, size=length, dtype=np.uint8).tobytes()
        (folder / f"{number:03}.txt").write_bytes(letters)
    return folder


def documents_of(experiment: Experiment, step: int) -> list[tuple[Tensor, Tensor]]:
    """Tokens and targets (1, n) of every part of a document that is in a sequence of the step's global batch."""
    assert experiment.data.path is not None
    length, size = experiment.model.seq_length, experiment.batch.global_batch_size
    files = [path.read_bytes() for path in sorted(Path(experiment.data.path).iterdir())]
    text, of_token = b"".join(files), np.repeat(np.arange(len(files)), list(map(len, files)))
    starts = range(0, len(text) - length, length)
    parts = []
    for sample in range((step - 1) * size, step * size):
        epoch, index = divmod(sample, len(starts))
        start = starts[place_in_permutation(index, len(starts), hash_of(experiment.training.seed) ^ epoch)]
        ids = torch.tensor(list(text[start : start + length + 1]))[None]
        for document in np.unique(of_token[start : start + length]):
            inside = np.flatnonzero(of_token[start : start + length] == document)
            parts.append((ids[:, inside], ids[:, inside + 1]))
    return parts


def train_separately(experiment: Experiment) -> Trained:
    """The oracle's training, in fp64, on each document as a sequence of its own."""
    weights = {name: value.double().requires_grad_() for name, value in first_weights(experiment).items()}
    adam = Update(weights, experiment)
    losses, norms = [], []
    num_tokens = experiment.batch.global_batch_size * experiment.model.seq_length
    for step in range(1, experiment.training.num_steps + 1):
        shares = [
            losses_of(tokens, targets, weights, experiment.model)[0] * tokens.numel() / num_tokens
            for tokens, targets in documents_of(experiment, step)
        ]
        loss = torch.stack(shares).sum()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        losses.append(float(loss.detach()))
        norms.append(adam.step(step, dict(zip(weights, gradients, strict=True))))
    return Trained(losses, norms, {name: weight.detach().numpy() for name, weight in weights.items()})


def separate(folder: Path) -> dict[str, object]:
    return {"model.seq_length": 48, "data.path": str(folder), "data.separate_documents": True}


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("layout", WINDOWED, ids=lambda layout: "-".join(map(str, layout)))
def test_windows_capped_scores_and_sinks_stay_inside_documents(
    layout: Layout, folder: Path, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    window: dict[str, object] = {"model.attention_window": {"size": 7, "full_every": 2}}
    if layout.family == "llama":
        window |= {"model.scores_cap": 0.01, "model.parts": ["sinks"]}
    experiment = experiment_of(layout.values() | separate(folder) | window)
    answers = worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path)
    require_like(assembled(answers), train_separately(experiment))


@pytest.mark.one_in(10)
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(map(str, layout)))
def test_each_document_trains_as_if_alone(
    layout: Layout, folder: Path, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(layout.values() | separate(folder))
    measured = assembled(worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path))
    require_like(measured, train_separately(experiment))


def measure(world: World, experiment: Experiment, cache_dir: Path) -> Performance:
    return train(experiment, world, cache_dir)


def test_flops_are_those_of_the_documents_that_were_trained_on(
    folder: Path, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    # Each replica counts its own.
    values = Layout(1, 1, 2, recompute=("selective", 1)).values() | {"training.num_warmup_steps": 1}
    experiment = experiment_of(values | separate(folder))
    model, batch = experiment.model, experiment.batch.global_batch_size
    performance = worlds(2).run(measure, experiment, tmp_path)[0]
    pairs = [sum(tokens.numel() ** 2 for tokens, _ in documents_of(experiment, step)) for step in (2, 3)]
    core = 4 * model.query_size * sum(pairs) / len(pairs)
    spared = model.num_layers * (attention_core_forward_flops(model, batch) - core)
    assert performance.flops_formula == "matmul-document-square-v1"
    assert performance.model_flops == pytest.approx(model_flops(model, batch) - 3 * spared)
    assert performance.hardware_flops - performance.model_flops == pytest.approx(model.num_layers * core)
    assert performance.model_flops < model_flops(model, batch)
