"""Batches that depend on (seed, step, sequence) alone, so that every layout trains on the same global batch.

    step n, global batch of 16     | 0  1  2  3  4  5  6  7 | 8  9 10 11 12 13 14 15 |
                                   |  replica 0: 4 x 2      |  replica 1: 4 x 2      |     micro-batches of two

An epoch visits every sequence once, in an order of its own (`tokens`); the next epoch starts wherever in a global batch
the last one ends. Nothing is remembered between steps, so that training can go on from any step.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from conf.plan.experiment import Experiment
from train_core.data.token_file import TokenFile
from train_core.data.tokens import HELD_OUT, TRAINING, Window, open_windows, prepare
from train_core.model.documents import Documents
from train_core.parallel.mesh import Mesh
from train_core.parallel.pipeline_parallel import MicroBatch
from train_core.process.world import result_of_first


class Batches:
    """This rank's micro-batches of every step, and of every held-out batch.

    Replica d of a step takes the d-th equal run of the global batch's sequences. Only the two end stages read, unless
    documents are separate, which every layer's attention has to know.
    """

    def __init__(self, experiment: Experiment, mesh: Mesh, device: torch.device, cache_dir: Path) -> None:
        """Raises ConfigError when the data cannot be used; see `tokens.prepare`."""
        batch = experiment.batch
        self.micro_batch_size, self.global_batch_size = batch.micro_batch_size, batch.global_batch_size
        self.num_sequences = experiment.num_micro_batches * self.micro_batch_size  # of this replica, in a step
        self.first_sequence = mesh.batch.rank * self.num_sequences
        self.device = device
        # Every rank takes part in this, also those that will read nothing, because it is a collective.
        find = partial(prepare, experiment, cache_dir)  # on rank 0 alone, for it reads a text through
        self.tokens = tokens = None if experiment.data.source == "synthetic" else result_of_first(find, mesh.world)
        if mesh.is_first_stage or mesh.is_last_stage or experiment.data.separate_documents:
            self.windows = open_windows(experiment, tokens)
        self.documents: dict[str, Window] | None = None
        if experiment.data.separate_documents:
            self.documents = open_windows(experiment, tokens, TokenFile.document_numbers)
        # What is evaluated: the part that is held out, where there is one, and the sets that are.
        own = [] if tokens and not experiment.data.held_out_fraction else [HELD_OUT]
        self.evaluated = [*own, *(tokens.held_out if tokens else ())]

    @property
    def token_file(self) -> TokenFile | None:
        """A file whose tokenizer is that of all; None where tokens are drawn at random."""
        return self.tokens and self.tokens.first

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """A micro-batch of a training step. Steps count from 1, micro-batches of a step from 0."""
        return self._read(TRAINING, step - 1, index)

    def held_out_micro_batch(self, name: str, batch: int, index: int) -> MicroBatch:
        """A micro-batch of one of `evaluated`. Batches of it count from 0, and are the same at every evaluation."""
        return self._read(name, batch, index)

    def _read(self, part: str, batch: int, index: int) -> MicroBatch:
        # Through steps, then replicas, then micro-batches, so that every layout makes the same global batch of a step.
        first = batch * self.global_batch_size + self.first_sequence + index * self.micro_batch_size
        ids = self._on_device(self._windows_of(self.windows[part], first))  # (s + 1, b)
        if self.documents is None:
            return MicroBatch(ids[:-1], ids[1:])
        numbers = self._windows_of(self.documents[part], first)[:-1]
        return MicroBatch(ids[:-1], ids[1:], Documents.of(numbers, self._on_device))

    def _windows_of(self, window: Window, first: int) -> NDArray[np.int64]:
        """The windows of a micro-batch that begins with sample `first`: (s + 1, b)."""
        return np.stack([window(first + i) for i in range(self.micro_batch_size)], axis=1)

    def _on_device(self, values: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        if self.device.type == "cuda":  # from pageable memory the copy would wait for all kernels that are queued
            tensor = tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor
