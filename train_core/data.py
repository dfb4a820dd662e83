"""Batches that depend on (seed, step, sequence) alone, so that every layout trains on the same global batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from conf.experiment import Experiment
from train_core.mesh import Mesh
from train_core.pipeline_parallel import MicroBatch
from train_core.tokens import prepare

Window = Callable[[int, int], NDArray[np.int64]]
"""(step, sequence of the global batch) -> seq_length + 1 token ids."""


class Batches:
    """This rank's micro-batches of every step.

    Replica d of a step takes the d-th equal run of the global batch's sequences.
    """

    def __init__(self, experiment: Experiment, mesh: Mesh, device: torch.device, cache_dir: Path) -> None:
        """Raises ConfigError when the text cannot be used; see `tokens.prepare`."""
        self.micro_batch_size = experiment.batch.micro_batch_size
        self.first_sequence = mesh.data.rank * experiment.num_micro_batches * self.micro_batch_size
        self.device = device
        self.window = open_windows(experiment, cache_dir)

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        first = self.first_sequence + index * self.micro_batch_size
        windows = [self.window(step, sequence) for sequence in range(first, first + self.micro_batch_size)]
        ids = torch.from_numpy(np.stack(windows, axis=1)).to(self.device)  # (s + 1, b)
        return MicroBatch(ids[:-1], ids[1:])


def open_windows(experiment: Experiment, cache_dir: Path) -> Window:
    if experiment.data.source == "synthetic":
        return synthetic_windows(experiment)
    return text_windows(experiment, prepare(experiment.data, experiment.model, cache_dir).read())


def text_windows(experiment: Experiment, tokens: NDArray[np.unsignedinteger]) -> Window:
    """Sequences that start anywhere in the text."""
    length, seed = experiment.model.seq_length + 1, experiment.training.seed

    def window(step: int, sequence: int) -> NDArray[np.int64]:
        start = _generator(seed, step, sequence).integers(len(tokens) - length + 1)
        return tokens[start : start + length].astype(np.int64)

    return window


def synthetic_windows(experiment: Experiment) -> Window:
    """Tokens drawn evenly from the vocabulary."""
    model, seed = experiment.model, experiment.training.seed

    def window(step: int, sequence: int) -> NDArray[np.int64]:
        return _generator(seed, step, sequence).integers(model.vocab_size, size=model.seq_length + 1)

    return window


def _generator(seed: int, step: int, sequence: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, sequence]))
