"""Muon's price: the matrices that a rank makes orthogonal, what it exchanges for them, and the state that it keeps.

`train_core.optimizers.muon` has the rules. Ranks share out the matrices in rounds, each of which takes as long as the
costliest of its matrices; the seconds are those of products in the type of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from conf.units import FLOAT32_BYTES
from costs.collectives import exchange_seconds
from costs.counts.parameters import Matrix, attention_matrices, feed_forward_matrices
from costs.kernels import matmul_seconds, memory_bound_seconds
from costs.setting import Floats, Integers
from costs.shared_rules import NEWTON_SCHULZ_STEPS, orthogonal_flops
from costs.step.priced_stage import PricedStage
from costs.step.replicas import expert_replicas, expert_stride, num_shards

MORE_PASSES = 18
"""Passes over a matrix in fp32 beyond those of AdamW: of momentum, look-ahead, scaling and masters. Counted in bf16, by
what the operations of one rank read and write."""


def is_muons(stage: PricedStage) -> bool:
    return stage.setting.optimizer == "muon"


def owned_hidden(stage: PricedStage) -> Integers:
    """The elements of the matrices of layers that a rank updates, and has a momentum of."""
    owned: Integers = np.asarray(0)
    for pool in _pools(stage):
        owned = owned + pool.owned
    return owned


def muon_seconds(stage: PricedStage) -> Floats:
    """Seconds of a rank's update beyond those of AdamW: products, passes over matrices, and exchanges."""
    seconds = memory_bound_seconds(stage.setting, owned_hidden(stage) * (MORE_PASSES * FLOAT32_BYTES))
    for pool in _pools(stage):
        # There and back, between the replicas and between the tensor ranks that a matrix is dealt to.
        num_bytes = pool.owned * FLOAT32_BYTES / np.maximum(pool.num_rounds, 1)
        of_replicas = exchange_seconds(stage.setting, num_bytes, pool.num_replicas, pool.stride)
        of_tensor = exchange_seconds(stage.setting, num_bytes, pool.num_tensor_ranks, np.asarray(1))
        seconds = seconds + pool.product_seconds(stage) + 2 * pool.num_rounds * (of_replicas + of_tensor)
    return seconds


def update_bytes_at_once(stage: PricedStage) -> Integers:
    """The most that a round holds: pieces before and after they travel, and a matrix that is multiplied."""
    most: Integers = np.asarray(0)
    for pool in _pools(stage):
        largest = max(each.size for _, each in pool.kinds)
        in_round = np.minimum(pool.number, pool.num_ranks)
        held = -(-in_round * largest // pool.num_ranks)  # of each of a round's matrices
        dealt = np.minimum(in_round, pool.num_tensor_ranks) * largest // pool.num_tensor_ranks
        moving = np.maximum(2 * held, held + dealt) * FLOAT32_BYTES
        at_work = [
            FLOAT32_BYTES * each.size * np.where((pool.num_tensor_ranks > 1) & (each.split == "rows"), 2, 1)
            + np.maximum(_bytes_at_work(each, stage.setting.dtype_bytes), 2 * FLOAT32_BYTES * each.size)
            for _, each in pool.kinds
        ]
        most = np.maximum(most, np.where(pool.number > 0, np.maximum(moving, np.maximum.reduce(at_work)), 0))
    return most


class PricedPool(NamedTuple):
    """Matrices that the same ranks deal out among them.

    Attributes:
        kinds: how many there are of each, and the whole matrix.
        stride: devices from a replica to the next.
    """

    kinds: list[tuple[Integers, Matrix]]
    num_replicas: Integers
    num_tensor_ranks: Integers
    stride: Integers

    @property
    def num_ranks(self) -> Integers:
        return self.num_replicas * self.num_tensor_ranks

    @property
    def number(self) -> Integers:
        return np.asarray(sum(number for number, _ in self.kinds))

    @property
    def num_rounds(self) -> Integers:
        return -(-self.number // self.num_ranks)

    @property
    def owned(self) -> Integers:
        """The elements that a rank updates."""
        of_tensor_rank = sum(number * (each.size // self.num_tensor_ranks) for number, each in self.kinds)
        return np.asarray(of_tensor_rank) // self.num_replicas

    def product_seconds(self, stage: PricedStage) -> Floats:
        """Seconds of the rank that gets the costliest matrix of each round."""
        before, seconds = np.asarray(0), np.asarray(0.0)
        for number, each in sorted(self.kinds, key=lambda kind: -orthogonal_flops(kind[1].columns, kind[1].depth)):
            rounds = -(-(before + number) // self.num_ranks) + -before // self.num_ranks
            before, seconds = before + number, seconds + rounds * _seconds(stage, each)
        return seconds


def _pools(stage: PricedStage) -> Iterator[PricedPool]:
    """Matrices that tensor ranks share, those that each of them has whole, and experts."""
    setting, plans, one = stage.setting, stage.plans, np.asarray(1)
    replicas = np.where(plans.zero_stage >= 1, num_shards(setting, plans), 1)
    kinds = [(np.asarray(number), each) for number, matrices in _layers(stage) for each in matrices]
    for is_split, ranks in ((True, plans.tensor_parallel_size), (False, one)):
        if chosen := [kind for kind in kinds if (kind[1].split != "nothing") == is_split]:
            yield PricedPool(chosen, replicas, ranks, plans.tensor_parallel_size)
    if (experts := setting.model.experts) is not None:
        number = (stage.group.layers - stage.dense_layers) * (experts.num_experts // plans.expert_parallel_size)
        of_expert = [
            (np.asarray(number), each) for each in feed_forward_matrices(setting.model, experts.ffn_hidden_size)
        ]
        holders = np.where(plans.zero_stage >= 1, expert_replicas(setting, plans), 1)
        yield PricedPool(of_expert, holders, one, expert_stride(setting, plans))


def _bytes_at_work(matrix: Matrix, width: int) -> int:
    """Beside a whole matrix that is made orthogonal: what it becomes, in fp32 or with two squares."""
    square = min(matrix.columns, matrix.depth) ** 2
    return max((FLOAT32_BYTES + width) * matrix.size, 2 * width * (matrix.size + square))


def _seconds(stage: PricedStage, matrix: Matrix) -> float:
    """Seconds in which a whole matrix is made orthogonal."""
    short, long = sorted((matrix.columns, matrix.depth))
    wide = matmul_seconds(stage.setting, short, short, long), matmul_seconds(stage.setting, short, long, short)
    return float(NEWTON_SCHULZ_STEPS * (sum(wide) + matmul_seconds(stage.setting, short, short, short)))


def _layers(stage: PricedStage) -> Iterable[tuple[Integers, tuple[Matrix, ...]]]:
    """Layers of each kind, and the matrices of one but for those of its experts."""
    model, experts, dense = stage.setting.model, stage.setting.model.experts, np.asarray(stage.dense_layers)
    attention = attention_matrices(model)
    if experts is None:
        return [(stage.group.layers, attention + feed_forward_matrices(model, model.ffn_hidden_size))]
    router = Matrix(experts.num_experts, model.hidden_size, "nothing")
    sparse = (*attention, router, *feed_forward_matrices(model, experts.shared_ffn_hidden_size))
    of_dense = attention + feed_forward_matrices(model, model.ffn_hidden_size)
    return [(stage.group.layers - dense, sparse), (dense, of_dense)]
