"""The matrices that Muon makes orthogonal on the first rank of a stage: their products, and how they come there.

Source: `train_core.optimizers.muon`, which does it. Of each round the first rank gets the first matrix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from conf.plan.experiment import Experiment
from conf.units import FLOAT32_BYTES
from costs.axes import EXPERT_REPLICAS
from costs.counts.buckets import Parameter, buckets_of, first_share, num_replicas, parameters_of
from costs.shared_rules import orthogonal_flops, rounds_of


class MuonExchange(NamedTuple):
    """An all-to-all over a group of ranks, to which the first rank gives so many bytes."""

    group: str
    num_bytes: int


class HeldMatrix(NamedTuple):
    """A matrix as a tensor rank has it, and its elements that the first replica updates."""

    parameter: Parameter
    num_held: int


class CountedPool(NamedTuple):
    """Matrices that the same ranks deal out among them.

    Attributes:
        group: that of the replicas.
        num_replicas, num_tensor_ranks: those among which matrices are dealt out.
    """

    group: str
    num_replicas: int
    num_tensor_ranks: int
    matrices: list[HeldMatrix]

    def rounds(self) -> Iterator[list[HeldMatrix]]:
        return rounds_of(self.matrices, self.flops_of, self.num_replicas * self.num_tensor_ranks)

    def flops_of(self, held: HeldMatrix) -> int:
        """Those that make the whole matrix orthogonal."""
        parameter, t = held.parameter, self.num_tensor_ranks
        whole = (parameter.rows, parameter.columns * t) if parameter.split else (parameter.rows * t, parameter.columns)
        return orthogonal_flops(*whole)


def muon_flops(experiment: Experiment, stage: int) -> int:
    """FLOPs of matrix products in the update of the first rank of a stage; 0 with another optimizer."""
    return sum(pool.flops_of(matrices[0]) for pool in _pools(experiment, stage) for matrices in pool.rounds())


def muon_exchanges(experiment: Experiment, stage: int) -> Iterator[MuonExchange]:
    """In each round matrices go to the replicas that they are dealt to, then to their tensor ranks, and back."""
    for pool in _pools(experiment, stage):
        t = pool.num_tensor_ranks
        for matrices in pool.rounds():
            dealt = sum(each.parameter.length for each in matrices[:t])  # to the first replica, of this tensor rank
            whole = t * matrices[0].parameter.length
            if pool.num_replicas > 1:
                yield MuonExchange(pool.group, sum(each.num_held for each in matrices) * FLOAT32_BYTES)
                yield MuonExchange(pool.group, dealt * FLOAT32_BYTES)
            if t > 1:
                yield from (MuonExchange("tensor", length * FLOAT32_BYTES) for length in (dealt, whole))


def _pools(experiment: Experiment, stage: int) -> Iterator[CountedPool]:
    if experiment.training.optimizer != "muon":
        return
    pools: dict[tuple[str, int, int], list[HeldMatrix]] = defaultdict(list)
    for replicas, held in _held(experiment, stage):
        treatment = held.parameter.treatment
        is_split = treatment.reduced_over != (EXPERT_REPLICAS,) and "tensor" not in treatment.copied_over
        t = experiment.parallel.tensor_parallel_size if is_split else 1  # of what all hold whole, each makes its own
        pools[treatment.reduced_over[0], replicas, t].append(held)
    yield from (CountedPool(*ranks, matrices) for ranks, matrices in pools.items())


def _held(experiment: Experiment, stage: int) -> Iterator[tuple[int, HeldMatrix]]:
    """Every matrix, each expert's by itself, beside the number of replicas that share it out."""
    if experiment.is_fully_sharded:
        d = experiment.num_replicas
        hidden = (each for each in parameters_of(experiment, stage) if each.treatment.role == "hidden")
        yield from ((d, HeldMatrix(each, first_share(each, d))) for each in hidden)
        return
    for treatment, members, length in buckets_of(experiment, stage):
        if treatment.role == "hidden":
            d = num_replicas(experiment, treatment) if experiment.parallel.zero_stage >= 1 else 1
            start = 0
            for each in members:
                number = _num_experts(experiment, each)
                matrix = each._replace(rows=each.rows // number)
                for _ in range(number):
                    yield d, HeldMatrix(matrix, min(max(length // d - start, 0), matrix.length))
                    start += matrix.length


def _num_experts(experiment: Experiment, parameter: Parameter) -> int:
    """The matrices that lie one below the other in a parameter."""
    experts = experiment.model.experts
    if experts is None or parameter.treatment.reduced_over != (EXPERT_REPLICAS,):
        return 1
    return experts.num_experts // experiment.parallel.expert_parallel_size
