"""What the steps of plans count with their departures from plain ones, one plan at a time and without a column."""

from __future__ import annotations

from math import sqrt

from costs import Estimate
from sweeps.memory_odds import MemoryOdds
from sweeps.planner.plans.strategy import Strategy


def counted_seconds(strategy: Strategy, predicted: Estimate, num_layers: int, fewest: Estimate | None = None) -> float:
    """A hundredth of the step more for each departure.

    Args:
        fewest: the same where rings leave nodes through one port, if that is a question.
    """
    slow = predicted.step_seconds if fewest is None else max(predicted.step_seconds, fewest.step_seconds)
    return sqrt(predicted.step_seconds * slow) * (1 + 0.01 * num_departures(strategy, predicted, num_layers))


def num_departures(strategy: Strategy, predicted: Estimate, num_layers: int) -> int:
    odds = MemoryOdds.of(predicted.implementation, strategy.parallel.world_size)
    parallel = strategy.parallel
    t, p, c, e = (getattr(parallel, f"{axis}_parallel_size") for axis in ("tensor", "pipeline", "context", "expert"))
    sizes = {t, c, e, strategy.batch.micro_batch_size}
    has_equal_stages = set(strategy.layers_per_stage(num_layers)) == {num_layers / p}
    has_equal_chunks = has_equal_stages and num_layers % (p * parallel.virtual_pipeline_size) == 0
    return sum(
        (
            *(size > 1 for size in (t, p, c, e)),
            any(size.bit_count() > 1 for size in sizes),
            num_layers % p == 0 and not has_equal_chunks,
            parallel.schedule == "zero-bubble",
            parallel.recompute == "pointwise",
            parallel.recompute_every > 1,
            parallel.zero_group_size is not None and parallel.zero_stage > 0,
            parallel.offload_optimizer,
            parallel.pipeline_before_data and p > 1,
            odds.likelihood(predicted.peak_memory_bytes, predicted.memory_capacity_bytes) < 0.9,
        )
    )
