"""The flat buckets in which this trainer keeps one rank's parameters, as far as collectives need them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from conf.experiment import Experiment
from train_core.axes import ENDS
from train_core.bucket_rules import Treatment, bucketed, padded_length


class Parameter(NamedTuple):
    """A parameter of one tensor rank; all of a stage's have the same. A vector has one column."""

    treatment: Treatment
    rows: int
    columns: int = 1

    @property
    def length(self) -> int:
        return self.rows * self.columns


def buckets_of(experiment: Experiment, stage: int) -> list[tuple[Treatment, int]]:
    """Return the treatment and the length of each bucket of a stage, in the trainer's order."""

    def treatment(parameter: Parameter) -> Treatment:
        return parameter.treatment

    def length(parameter: Parameter) -> int:
        return parameter.length

    return [
        (treated, padded_length(sum(map(length, members)), experiment.num_replicas))
        for treated, members in bucketed(parameters_of(experiment, stage), treatment, length)
    ]


def parameters_of(experiment: Experiment, stage: int) -> Iterator[Parameter]:
    """The parameters of one tensor rank of a stage in model order, as the trainer makes them."""
    is_first, is_last = stage == 0, stage == experiment.parallel.pipeline_parallel_size - 1
    if is_first:
        yield from _embedding(experiment, tied=experiment.model.tied_embeddings and not is_last)
    for _ in range(experiment.layers_per_stage[stage]):
        yield from layer_parameters_of(experiment)
    if is_last:
        yield from _end(experiment, tied=experiment.model.tied_embeddings and not is_first)


def _embedding(experiment: Experiment, tied: bool) -> Iterator[Parameter]:
    model = experiment.model
    rows = model.vocab_size // experiment.parallel.tensor_parallel_size
    yield Parameter(_split(decays=True, tied=tied), rows, model.hidden_size)
    if model.family == "gpt":
        yield Parameter(_whole(experiment, decays=True), model.seq_length, model.hidden_size)


def layer_parameters_of(experiment: Experiment) -> Iterator[Parameter]:
    """The parameters of any one layer, since all layers are alike."""
    model, t = experiment.model, experiment.parallel.tensor_parallel_size
    h, q, f = model.hidden_size, model.query_size // t, model.ffn_hidden_size // t
    columns = (q + 2 * model.key_value_size // t, (2 if model.gated_mlp else 1) * f)
    is_gpt = model.family == "gpt"
    for column, row, is_biased in zip(columns, (q, f), (model.has_qkv_bias, is_gpt), strict=True):
        yield from _norm(experiment)
        yield Parameter(_split(decays=True), column, h)
        yield Parameter(_split(decays=True), h, row)
        if is_biased:
            yield Parameter(_split(decays=False), column)
        if is_gpt:
            yield Parameter(_whole(experiment, decays=False), h)


def _end(experiment: Experiment, tied: bool) -> Iterator[Parameter]:
    """Final norm, and the head where its weight is not the embedding's on this stage."""
    model = experiment.model
    yield from _norm(experiment)
    # A tied head on a later stage is a second copy; the first stage counts it, so that the global norm has it once.
    if tied or not model.tied_embeddings:
        rows = model.vocab_size // experiment.parallel.tensor_parallel_size
        yield Parameter(_split(decays=True, tied=tied), rows, model.hidden_size)


def _norm(experiment: Experiment) -> list[Parameter]:
    vectors = 2 if experiment.model.family == "gpt" else 1
    return [Parameter(_whole(experiment, decays=False), experiment.model.hidden_size)] * vectors


def _split(*, decays: bool, tied: bool = False) -> Treatment:
    """Return the treatment of a parameter of which each tensor rank holds a part."""
    at_both_ends = (ENDS,) if tied else ()
    return Treatment(decays, copied_over=at_both_ends, summed_over=at_both_ends)


def _whole(experiment: Experiment, *, decays: bool) -> Treatment:
    """Return the treatment of a parameter that every tensor rank holds whole."""
    parallel = experiment.parallel
    on_all = ("tensor",) if parallel.tensor_parallel_size > 1 else ()
    return Treatment(decays, copied_over=on_all, summed_over=on_all if parallel.sequence_parallel else ())
