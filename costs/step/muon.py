"""Muon's price: the matrices that a rank makes orthogonal, what it gathers for them, and the state that it keeps.

`train_core.optimizers.muon` has the rules. Under ZeRO-1 and 2 replicas share out the matrices, of which the slowest has
at least one; the seconds are those of products in the type of the weights, one matrix after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np

from conf.units import FLOAT32_BYTES
from costs.collectives import ring_of
from costs.counts.parameters import Matrix, attention_matrices, feed_forward_matrices
from costs.kernels import matmul_seconds, memory_bound_seconds
from costs.setting import Floats, Integers
from costs.shared_rules import MAX_BUCKET_ELEMENTS, NEWTON_SCHULZ_STEPS
from costs.step.priced_stage import PricedStage
from costs.step.replicas import expert_replicas, num_shards
from costs.step.sharding import is_fully_sharded

MORE_PASSES = 9
"""Passes over a matrix in fp32 beyond the 7 of AdamW's kernel: of momentum, look-ahead, update and masters."""


def is_muons(stage: PricedStage) -> bool:
    return stage.setting.optimizer == "muon"


def hidden_parameters(stage: PricedStage) -> tuple[Integers, Integers]:
    """Elements of the matrices of layers on a rank: of those that tensor ranks share, and of experts."""
    t = stage.plans.tensor_parallel_size
    shared = sum(
        number * sum(each.size // (1 if each.split == "nothing" else t) for each in matrices)
        for number, matrices in _layers(stage)
    )
    return np.asarray(shared), stage.expert_parameters


def owned_hidden(stage: PricedStage) -> Integers:
    """The part of them that a rank updates, and has a momentum of."""
    shared, experts = hidden_parameters(stage)
    is_shared, of_experts = stage.plans.zero_stage >= 1, expert_replicas(stage.setting, stage.plans)
    owned: Integers = shared // np.where(is_shared, num_shards(stage.setting, stage.plans), 1)
    return owned + experts // np.where(is_shared, of_experts, 1)


def muon_seconds(stage: PricedStage) -> Floats:
    """Seconds of a rank's update beyond those of AdamW: products, passes over matrices, and gathers."""
    setting, plans = stage.setting, stage.plans
    shares_products = (plans.zero_stage >= 1) & (plans.zero_stage <= 2)
    shards = np.where(shares_products, num_shards(setting, plans), 1)
    listed = [(number, [_seconds(stage, each) for each in matrices]) for number, matrices in _layers(stage)]
    whole = sum(number * sum(each) for number, each in listed)
    longest = max((max(each) for _, each in listed if each), default=0.0)
    products = np.maximum(whole / shards, np.where(np.asarray(whole) > 0, longest, 0.0))
    if (experts := setting.model.experts) is not None:
        each = sum(_seconds(stage, one) for one in feed_forward_matrices(setting.model, experts.ffn_hidden_size))
        held = (stage.group.layers - stage.dense_layers) * (experts.num_experts // plans.expert_parallel_size)
        products = products + held * each / np.where(shares_products, expert_replicas(setting, plans), 1)
    moved = owned_hidden(stage) * (MORE_PASSES * FLOAT32_BYTES)
    return products + memory_bound_seconds(setting, moved) + _gather_seconds(stage, shards)


def update_bytes_at_once(stage: PricedStage) -> Integers:
    """The most that an update holds: a bucket's gathered momentum and its update, and a matrix that is multiplied."""
    setting, plans = stage.setting, stage.plans
    largest: Integers = np.asarray(0)
    shared, experts = hidden_parameters(stage)
    listed = [each for number, matrices in _layers(stage) if np.any(number) for each in matrices]
    t = plans.tensor_parallel_size
    of_rank = [np.asarray(each.size // (1 if each.split == "nothing" else t)) for each in listed]
    longest = reduce(np.maximum, of_rank)
    kinds = [(shared, longest, np.maximum(longest, MAX_BUCKET_ELEMENTS), num_shards(setting, plans), listed)]
    if (spec := setting.model.experts) is not None:
        of_expert = feed_forward_matrices(setting.model, spec.ffn_hidden_size)
        held, sizes = spec.num_experts // plans.expert_parallel_size, [each.size for each in of_expert]
        # The two parameters of a layer share a bucket with others only if they fit into one together.
        fitting = np.where(held * sum(sizes) > MAX_BUCKET_ELEMENTS, held * max(sizes), MAX_BUCKET_ELEMENTS)
        kinds.append((experts, held * max(sizes), fitting, expert_replicas(setting, plans), list(of_expert)))
    for whole, longest, most_of_bucket, shards, matrices in kinds:
        at_most = np.where(is_fully_sharded(stage), longest, most_of_bucket)
        bucket, is_shared = np.minimum(whole, at_most), (plans.zero_stage >= 1) & (shards > 1)
        gathered = np.where(is_shared, bucket + bucket // shards, bucket)
        splits = (matrices is listed) & (t > 1)
        at_work = max(_bytes_at_work(each, setting.dtype_bytes) for each in matrices)
        most = max(each.size for each in matrices)  # gathered, and this rank's part of what it becomes
        beside = np.where(splits, most + most // t, 0)
        largest = np.maximum(largest, (gathered + beside) * FLOAT32_BYTES + np.where(whole > 0, at_work, 0))
    return largest


def _bytes_at_work(matrix: Matrix, width: int) -> int:
    """While a whole matrix is made orthogonal: it and what it becomes, in fp32 or beside two squares."""
    square = min(matrix.columns, matrix.depth) ** 2
    return max((FLOAT32_BYTES + width) * matrix.size, 2 * width * (matrix.size + square))


def _gather_seconds(stage: PricedStage, shards: Integers) -> Floats:
    setting, plans = stage.setting, stage.plans
    shared, experts = hidden_parameters(stage)
    over_replicas = stage.replicas.gather_seconds(shared + experts, experts, FLOAT32_BYTES)
    tensor = ring_of(setting, plans.tensor_parallel_size, np.asarray(1))
    over_tensor = tensor.gather_seconds(shared * plans.tensor_parallel_size * FLOAT32_BYTES / shards)
    return np.where((plans.zero_stage >= 1) & (plans.num_replicas > 1), over_replicas, 0.0) + np.where(
        plans.tensor_parallel_size > 1, over_tensor, 0.0
    )


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
