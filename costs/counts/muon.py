"""The matrices that Muon makes orthogonal on the first rank of a stage: their products, and what is gathered for them.

Source: `train_core.optimizers.muon`, which does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from conf.plan.experiment import Experiment
from conf.units import FLOAT32_BYTES
from costs.axes import EXPERT_REPLICAS
from costs.counts.buckets import Parameter, buckets_of, first_share, num_replicas, parameters_of
from costs.shared_rules import NEWTON_SCHULZ_STEPS


class MuonGather(NamedTuple):
    """An all-gather over a group of ranks, of so many bytes in all."""

    group: str
    num_bytes: int


def orthogonal_flops(rows: int, columns: int) -> int:
    """The products that make a whole matrix orthogonal: its square, the square's, and the sum of both with it."""
    short, long = sorted((rows, columns))
    return NEWTON_SCHULZ_STEPS * 2 * short * short * (2 * long + short)


def muon_flops(experiment: Experiment, stage: int) -> int:
    """FLOPs of matrix products in the update of the first rank of a stage; 0 with another optimizer."""
    return sum(orthogonal_flops(*_whole(experiment, each)) for each in _touched(experiment, stage))


def muon_gathers(experiment: Experiment, stage: int) -> Iterator[MuonGather]:
    """What that rank gathers: momenta over replicas that share them out, and then matrices over tensor ranks."""
    if experiment.training.optimizer != "muon":
        return
    if experiment.is_fully_sharded:
        d = experiment.num_replicas
        for each in parameters_of(experiment, stage):
            if each.treatment.role == "hidden":
                yield MuonGather("data", d * first_share(each, d) * FLOAT32_BYTES)
    elif experiment.parallel.zero_stage >= 1:
        for treatment, _, length in buckets_of(experiment, stage):
            if treatment.role == "hidden" and num_replicas(experiment, treatment) > 1:
                yield MuonGather(treatment.reduced_over[0], length * FLOAT32_BYTES)
    t = experiment.parallel.tensor_parallel_size
    for each in _touched(experiment, stage):
        if _is_split(each) and t > 1:
            yield MuonGather("tensor", t * each.length * FLOAT32_BYTES)


def _touched(experiment: Experiment, stage: int) -> Iterator[Parameter]:
    """The matrices of which the rank updates elements, each expert's by itself, as its tensor rank has them."""
    if experiment.training.optimizer != "muon":
        return
    if experiment.is_fully_sharded:  # the first replica has rows of each
        yield from (each for each in parameters_of(experiment, stage) if each.treatment.role == "hidden")
        return
    for treatment, members, length in buckets_of(experiment, stage):
        if treatment.role == "hidden":
            shares = num_replicas(experiment, treatment) if experiment.parallel.zero_stage >= 1 else 1
            start = 0
            for each in members:
                number = _num_experts(experiment, each)
                matrix = each._replace(rows=each.rows // number)
                for place in range(number):
                    if start + place * matrix.length < length // shares:
                        yield matrix
                start += each.length


def _num_experts(experiment: Experiment, parameter: Parameter) -> int:
    """The matrices that lie one below the other in a parameter."""
    experts = experiment.model.experts
    if experts is None or parameter.treatment.reduced_over != (EXPERT_REPLICAS,):
        return 1
    return experts.num_experts // experiment.parallel.expert_parallel_size


def _is_split(parameter: Parameter) -> bool:
    """True if tensor ranks share it out; of experts, and of what all of them copy, each has the whole."""
    treatment = parameter.treatment
    return treatment.reduced_over != (EXPERT_REPLICAS,) and "tensor" not in treatment.copied_over


def _whole(experiment: Experiment, parameter: Parameter) -> tuple[int, int]:
    """Rows and columns of all tensor ranks together."""
    t = experiment.parallel.tensor_parallel_size if _is_split(parameter) else 1
    return (parameter.rows * t, parameter.columns) if parameter.split == 0 else (parameter.rows, parameter.columns * t)
