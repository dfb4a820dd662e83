"""The flat buckets in which this trainer keeps one rank's parameters, as far as collectives need them.

The same rules as `train_core.parallel.flat_parameters`, which tests hold them against: parameters that are treated
alike share buckets, a bucket ends before it grows too long, and its length is a multiple of what replicas share out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from conf.experiment import Experiment

ALIGNMENT = 64  # elements of a shard; flat_parameters.ALIGNMENT
MAX_BUCKET_ELEMENTS = 2**25  # flat_parameters.MAX_BUCKET_ELEMENTS


class Bucket(NamedTuple):
    """Some parameters of a stage's first tensor rank.

    Attributes:
        decays: matrices, which decay; else vectors.
        counted: in the gradient's norm, in which a tied embedding's copy is not counted.
        partial: tensor ranks add up their gradients.
        tied: first and last stage add up theirs.
        length: elements, padding included.
    """

    decays: bool
    counted: bool
    partial: bool
    tied: bool
    length: int


def buckets_of(experiment: Experiment, stage: int) -> list[Bucket]:
    """In the trainer's order; `length` is that of the whole bucket."""
    parameters = sorted(_parameters(experiment, stage), key=lambda one: one[:-1])
    multiple = ALIGNMENT * experiment.data_parallel_size
    return [
        first._replace(length=-(-used // multiple) * multiple)
        for first, lengths in _alike(parameters)
        for used in _runs(lengths)
    ]


def _alike(parameters: list[Bucket]) -> Iterator[tuple[Bucket, list[int]]]:
    """Neighbours that are treated alike: the first of them, and how long each is."""
    for _, members in groupby(parameters, key=lambda one: one[:-1]):
        alike = list(members)
        yield alike[0], [one.length for one in alike]


def _runs(lengths: list[int]) -> Iterator[int]:
    """Sums of neighbours that stay below the limit; a length above it is alone."""
    used = 0
    for length in lengths:
        if used and used + length > MAX_BUCKET_ELEMENTS:
            yield used
            used = 0
        used += length
    yield used


def _parameters(experiment: Experiment, stage: int) -> Iterator[Bucket]:
    """One by one in model order, as if each were a bucket."""
    model, t = experiment.model, experiment.parallel.tensor_parallel_size
    is_first, is_last = stage == 0, stage == experiment.parallel.pipeline_parallel_size - 1
    partial, tied = experiment.parallel.sequence_parallel, model.tied_embeddings and is_first != is_last
    h, rows = model.hidden_size, model.vocab_size // t
    if is_first:
        yield Bucket(True, True, False, tied, rows * h)
        if model.family == "gpt":
            yield Bucket(True, True, partial, False, model.seq_length * h)
    for _ in range(experiment.layers_per_stage[stage]):
        yield from _layer(experiment, partial)
    if is_last:
        yield from _norm(experiment, partial)
        if tied or not model.tied_embeddings:
            yield Bucket(True, not model.tied_embeddings, False, tied, rows * h)


def _layer(experiment: Experiment, partial: bool) -> Iterator[Bucket]:
    model, t = experiment.model, experiment.parallel.tensor_parallel_size
    h, q, f = model.hidden_size, model.query_size // t, model.ffn_hidden_size // t
    columns = (q + 2 * model.key_value_size // t, (2 if model.gated_mlp else 1) * f)
    for column, row in zip(columns, (q, f), strict=True):
        yield from _norm(experiment, partial)
        yield Bucket(True, True, False, False, column * h)
        yield Bucket(True, True, False, False, row * h)
        if model.family == "gpt":
            yield Bucket(False, True, False, False, column)
            yield Bucket(False, True, partial, False, h)


def _norm(experiment: Experiment, partial: bool) -> list[Bucket]:
    vectors = 2 if experiment.model.family == "gpt" else 1
    return [Bucket(False, True, partial, False, experiment.model.hidden_size)] * vectors
