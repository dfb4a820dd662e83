"""The share of each type of devices in a step of a mixed job, from the step's time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from conf.plan.setup import Setup
from train_core.costs.counts.flops import ALL, DoneShares, spared_flops, stage_model_flops
from train_core.measurement import BlockRates


def block_rates(
    setup: Setup,
    step_seconds: float,
    memory_of_stages: Sequence[int],
    devices_per_rank: float = 1.0,
    measured_peak: float | None = None,
    done: DoneShares = ALL,
) -> tuple[BlockRates, ...]:
    """One entry for each block of a mixed job, and none where all devices are the same.

    Args:
        memory_of_stages: bytes of the fullest rank of every stage.
        devices_per_rank: less than 1 where ranks of a CPU share cores.
        measured_peak: FLOP/s of one device, where the same was measured for all; None takes what each device declares.
        done: as in `model_flops`.
    """
    if setup.mixed is None:
        return ()
    ends = [0, *accumulate(setup.stages_per_block)]
    rates = []
    for block, (start, end) in zip(setup.mixed, pairwise(ends), strict=True):
        device, layers = block.cluster.device, setup.layers_per_stage[start:end]
        of_model = range(sum(setup.layers_per_stage[:start]), sum(setup.layers_per_stage[:end]))
        has_head = end == setup.parallel.pipeline_parallel_size
        flops = stage_model_flops(setup.model, setup.batch.global_batch_size, of_model, has_head=has_head)
        num_mixtures = sum(layer >= setup.model.num_dense_layers for layer in of_model)
        flops -= spared_flops(setup.model, setup.batch.global_batch_size, 3 * len(of_model), 3 * num_mixtures, done)
        rate = flops / step_seconds / (block.num_devices * devices_per_rank)
        peak = measured_peak or device.peak_flops_per_second[setup.precision.dtype]
        rates.append(
            BlockRates(
                cluster=block.cluster.name,
                device=device.name,
                num_ranks=block.num_devices,
                layers_per_stage=layers,
                model_flops_per_second_per_device=rate,
                peak_flops_per_second=peak,
                model_flops_utilization=rate / peak,
                peak_memory_bytes=max(memory_of_stages[start:end]),
                memory_capacity_bytes=device.memory_bytes,
            )
        )
    return tuple(rates)
