"""Batches that depend on (seed, step, sequence) alone, so that every layout trains on the same global batch.

    step n, global batch of 16     | 0  1  2  3  4  5  6  7 | 8  9 10 11 12 13 14 15 |
                                   |  replica 0: 4 x 2      |  replica 1: 4 x 2      |     micro-batches of two

An epoch visits every sequence once, in an order of its own; the next epoch starts wherever in a global batch the last
one ends. Nothing is remembered between steps, so that training can go on from any step.

The order of an epoch: a balanced Feistel network permutes the smallest square of a power of two that holds n; an index
that it moves to n or above is moved on until it is below, which keeps it a permutation (cycle walking). Source: Luby
and Rackoff 1988 (the network); Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section 3."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from train_core.data.token_file import DocumentNumbers, Ids, TokenFile
from train_core.data.tokens import prepare, split_of
from train_core.model.documents import Documents
from train_core.parallel.mesh import Mesh
from train_core.parallel.pipeline_parallel import MicroBatch
from train_core.process.world import result_of_first

Stream = TypeVar("Stream")
Window = Callable[[int], NDArray[np.int64]]
"""From the number of a sample, counted over all steps, to its seq_length + 1 token ids."""


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
            self.training, self.held_out = open_windows(experiment, tokens)
        self.documents = open_document_windows(experiment, tokens)

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """A micro-batch of a training step. Steps count from 1, micro-batches of a step from 0."""
        return self._read(0, step - 1, index)

    def held_out_micro_batch(self, batch: int, index: int) -> MicroBatch:
        """A micro-batch that is held out. Such batches count from 0, and are the same at every evaluation."""
        return self._read(1, batch, index)

    def attended_share(self, step: int) -> float:
        """The scores between tokens of one document, of all pairs of tokens in this replica's sequences of a step.

        Of n equal documents in every sequence that is 1 / n.
        """
        if self.documents is None:
            return 1.0
        first = (step - 1) * self.global_batch_size + self.first_sequence
        numbers = (self.documents[0](first + i)[:-1] for i in range(self.num_sequences))
        shares = (np.bincount(of_tokens - of_tokens[0]) / of_tokens.size for of_tokens in numbers)
        return sum(float(np.square(each).sum()) for each in shares) / self.num_sequences

    def _read(self, part: int, batch: int, index: int) -> MicroBatch:
        """`part` is 0 for what trains and 1 for what is held out."""
        # Sequences count through steps, then replicas, then micro-batches, so that every layout makes the same global
        # batch of a step.
        first = batch * self.global_batch_size + self.first_sequence + index * self.micro_batch_size
        ids = self._on_device(self._windows_of((self.training, self.held_out)[part], first))  # (s + 1, b)
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


def open_windows(experiment: Experiment, tokens: TokenFile | None) -> tuple[Window, Window]:
    """The windows of the training and of the held-out part."""
    if tokens is None:
        return synthetic_windows(experiment, 0), synthetic_windows(experiment, 1)
    return stream_windows(experiment, _read_here(experiment, tokens.read))


def open_document_windows(experiment: Experiment, tokens: TokenFile | None) -> tuple[Window, Window] | None:
    """The windows of both parts again, with the number of each token's document; None unless these are separate."""
    if tokens is None or not experiment.data.separate_documents:
        return None
    return stream_windows(experiment, _read_here(experiment, tokens.document_numbers))


def _read_here(experiment: Experiment, read: Callable[[], Stream]) -> Stream:
    try:
        return read()
    except OSError as error:
        problem = f"{error.filename} cannot be read on this node ({error.strerror})"
        remedy = "Name a folder that all nodes share."
        raise ConfigError("data.cache_dir", experiment.data.cache_dir, problem, remedy) from None


def stream_windows(experiment: Experiment, ids: Ids | DocumentNumbers) -> tuple[Window, Window]:
    """The training sequences, shuffled anew in every epoch, and the held-out ones in order."""
    length, seed = experiment.model.seq_length, experiment.training.seed
    num_training, num_held_out = split_of(experiment, len(ids))

    def sequence(number: int) -> NDArray[np.int64]:
        # One token more than the length: the last one is only a target, and the first input of the next sequence.
        return ids[number * length : (number + 1) * length + 1].astype(np.int64)

    def training(sample: int) -> NDArray[np.int64]:
        epoch, index = divmod(sample, num_training)
        # The seed is hashed first: seed 0 would otherwise shuffle its epoch 1 as seed 1 shuffles its epoch 0.
        return sequence(place_in_permutation(index, num_training, hash_of(seed) ^ epoch))

    return training, lambda sample: sequence(num_training + sample % num_held_out)


def synthetic_windows(experiment: Experiment, part: int) -> Window:
    """Windows of tokens that are drawn evenly from the vocabulary; each part draws tokens of its own."""
    model, seed = experiment.model, experiment.training.seed

    def window(sample: int) -> NDArray[np.int64]:
        # Philox computes from a counter, so that any sample can be drawn without drawing those before it.
        generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, part, sample]))
        return generator.integers(model.vocab_size, size=model.seq_length + 1)

    return window


NUM_ROUNDS = 4  # with these, Luby and Rackoff's network is a strong pseudorandom permutation
WORD = 2**64 - 1


def place_in_permutation(index: int, size: int, seed: int) -> int:
    """The place to which the permutation of 0 .. size-1 that `seed` names moves `index`."""
    assert 0 <= index < size
    half_bits = ((size - 1).bit_length() + 1) // 2
    # The square is less than four times as large as `size`, so that a few rounds are enough on average.
    while True:
        # A place beyond the end is permuted again. No two indices can meet on the way, since each step can be undone.
        index = _network(index, half_bits, seed)
        if index < size:
            return index


def _network(index: int, half_bits: int, seed: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = index >> half_bits, index & mask
    # A round changes one half by a hash of the other, and can be undone from that: so the network is a permutation.
    for key in _round_keys(seed):
        left, right = right, left ^ (hash_of(right + key) & mask)
    return (left << half_bits) | right


@lru_cache(maxsize=2)
def _round_keys(seed: int) -> tuple[int, ...]:
    return tuple(hash_of(seed + number) for number in range(NUM_ROUNDS))


def hash_of(value: int) -> int:
    """A hash of 64 bits: each depends on every bit of `value`. Source: SplitMix64, Steele et al. 2014."""
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)
