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


class Parameter(NamedTuple):
    """One of a stage's first tensor rank; see `Bucket`. Of a vector there is one column."""

    decays: bool
    counted: bool
    partial: bool
    tied: bool
    rows: int
    columns: int = 1

    @property
    def length(self) -> int:
        return self.rows * self.columns


def buckets_of(experiment: Experiment, stage: int) -> list[Bucket]:
    """In the trainer's order; `length` is that of the whole bucket."""
    parameters = sorted(parameters_of(experiment, stage), key=_treatment)
    multiple = ALIGNMENT * experiment.data_parallel_size
    return [
        Bucket(*_treatment(first), -(-used // multiple) * multiple)
        for first, lengths in _alike(parameters)
        for used in _runs(lengths)
    ]


def _treatment(parameter: Parameter) -> tuple[bool, bool, bool, bool]:
    return parameter.decays, parameter.counted, parameter.partial, parameter.tied


def _alike(parameters: list[Parameter]) -> Iterator[tuple[Parameter, list[int]]]:
    """Neighbours that are treated alike: the first of them, and how long each is."""
    for _, members in groupby(parameters, key=_treatment):
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


def parameters_of(experiment: Experiment, stage: int) -> Iterator[Parameter]:
    """One by one in model order."""
    is_first, is_last = stage == 0, stage == experiment.parallel.pipeline_parallel_size - 1
    if is_first:
        yield from _embedding(experiment, tied=experiment.model.tied_embeddings and not is_last)
    for _ in range(experiment.layers_per_stage[stage]):
        yield from layer_parameters_of(experiment)
    if is_last:
        yield from _end(experiment, tied=experiment.model.tied_embeddings and not is_first)


def _embedding(experiment: Experiment, tied: bool) -> Iterator[Parameter]:
    model, partial = experiment.model, experiment.parallel.sequence_parallel
    rows = model.vocab_size // experiment.parallel.tensor_parallel_size
    yield Parameter(True, True, False, tied, rows, model.hidden_size)
    if model.family == "gpt":
        yield Parameter(True, True, partial, False, model.seq_length, model.hidden_size)


def layer_parameters_of(experiment: Experiment) -> Iterator[Parameter]:
    """Of any of them."""
    model, parallel = experiment.model, experiment.parallel
    t, partial = parallel.tensor_parallel_size, parallel.sequence_parallel
    h, q, f = model.hidden_size, model.query_size // t, model.ffn_hidden_size // t
    columns = (q + 2 * model.key_value_size // t, (2 if model.gated_mlp else 1) * f)
    for column, row in zip(columns, (q, f), strict=True):
        yield from _norm(experiment)
        yield Parameter(True, True, False, False, column, h)
        yield Parameter(True, True, False, False, h, row)
        if model.family == "gpt":
            yield Parameter(False, True, False, False, column)
            yield Parameter(False, True, partial, False, h)


def _end(experiment: Experiment, tied: bool) -> Iterator[Parameter]:
    """Final norm, and the head where its weight is not the embedding's on this stage."""
    model = experiment.model
    yield from _norm(experiment)
    if tied or not model.tied_embeddings:
        rows = model.vocab_size // experiment.parallel.tensor_parallel_size
        yield Parameter(True, not tied, False, tied, rows, model.hidden_size)


def _norm(experiment: Experiment) -> list[Parameter]:
    partial, vectors = experiment.parallel.sequence_parallel, 2 if experiment.model.family == "gpt" else 1
    return [Parameter(False, True, partial, False, experiment.model.hidden_size)] * vectors
