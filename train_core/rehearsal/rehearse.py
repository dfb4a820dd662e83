"""`rehearse(experiment)`: every stage rehearsed, several at a time."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from conf.experiment import Experiment
from train_core.costs.counts.computable import require_computable
from train_core.rehearsal.counts import Rehearsal, StageStep
from train_core.rehearsal.micro_batches import what_it_does

MOST_PROCESSES = 2
"""Each process takes a core and the memory of torch, about 0.4 GB."""


def rehearse(experiment: Experiment) -> Rehearsal:
    """One step of the trainer at full size, without devices; stages are rehearsed in processes of their own.

    Raises:
        ConfigError: its sizes are beyond 64 bits.
    """
    require_computable(experiment.model, experiment.batch.micro_batch_size)
    alike = [what_it_does(experiment, stage) for stage in range(experiment.parallel.pipeline_parallel_size)]
    different = {done: alike.index(done) for done in alike}  # the first stage of each kind stands for all of them
    # Processes and not threads, because a rehearsal joins a world, and a process can be in one only.
    with ProcessPoolExecutor(min(MOST_PROCESSES, len(different)), mp_context=get_context("spawn")) as pool:
        rehearsed = pool.map(partial(_stage, experiment), different.values())
        found = dict(zip(different, rehearsed, strict=True))
    stages = tuple(found[done].model_copy(update={"stage": stage}) for stage, done in enumerate(alike))
    replicas = experiment.data_parallel_size * experiment.parallel.tensor_parallel_size
    return Rehearsal(
        label=experiment.label,
        world_size=experiment.parallel.world_size,
        num_micro_batches=experiment.num_micro_batches,
        flops=replicas * sum(stage.flops for stage in stages),
        stages=stages,
        num_rehearsed=len(different),
    )


def _stage(experiment: Experiment, stage: int) -> StageStep:
    from train_core.rehearsal.stage import rehearse_stage  # imports torch, which only these processes need

    return rehearse_stage(experiment, stage)
