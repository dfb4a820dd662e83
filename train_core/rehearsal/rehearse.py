"""`rehearse(experiment)`: every stage rehearsed, several at a time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from conf.plan.experiment import Experiment
from costs.counts.parameters import require_computable
from train_core.process.long_lived import importing_torch
from train_core.rehearsal.counts import Rehearsal, StageStep, what_it_does

OnStage = Callable[[int, int], None]

MOST_PROCESSES = 2
"""Each process takes a core and the memory of torch, about 0.4 GB."""


def rehearse(experiment: Experiment, on_stage: OnStage = lambda done, total: None) -> Rehearsal:
    """One step of the trainer at full size, without devices; stages are rehearsed in processes of their own.

    Args:
        on_stage: told how many of the different stages are rehearsed, and of how many: at first none.

    Raises:
        ConfigError: its sizes are beyond 64 bits.
    """
    require_computable(experiment.model, experiment.batch.micro_batch_size)
    alike = [what_it_does(experiment, stage) for stage in range(experiment.parallel.pipeline_parallel_size)]
    different = {done: alike.index(done) for done in alike}  # the first stage of each kind stands for all of them
    found = dict(zip(different, _rehearse_stages(experiment, list(different.values()), on_stage), strict=True))
    stages = tuple(found[done].model_copy(update={"stage": stage}) for stage, done in enumerate(alike))
    ranks_per_stage = experiment.parallel.world_size // experiment.parallel.pipeline_parallel_size
    return Rehearsal(
        label=experiment.label,
        world_size=experiment.parallel.world_size,
        num_micro_batches=experiment.num_micro_batches,
        flops=ranks_per_stage * sum(stage.flops for stage in stages),
        stages=stages,
        num_rehearsed=len(different),
    )


def _rehearse_stages(experiment: Experiment, stages: Sequence[int], on_stage: OnStage) -> list[StageStep]:
    # Processes and not threads, because a rehearsal joins a world, and a process can be in one only.
    with ProcessPoolExecutor(min(MOST_PROCESSES, len(stages)), mp_context=get_context("spawn")) as pool:
        with _without_interrupts():  # processes start with the first stage that is submitted
            waiting = [pool.submit(_stage, experiment, stage) for stage in stages]
        try:
            on_stage(0, len(stages))
            for done, _ in enumerate(as_completed(waiting), start=1):
                on_stage(done, len(stages))
        except BaseException:
            # Else the pool would wait for stages that nobody wants any more.
            for process in active_children():
                process.terminate()
            raise
    return [future.result() for future in waiting]


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the block ends, and never reaches the processes that are started inside.

    It is sent to all processes of a terminal. Those would each tell of it with a traceback, while importing torch; this
    one ends them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stage(experiment: Experiment, stage: int) -> StageStep:
    with importing_torch():  # which only these processes need
        from train_core.rehearsal.stage import rehearse_stage

    return rehearse_stage(experiment, stage)
