"""`train(experiment, world, ...)`: the measured steps of one experiment, run by every rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import deterministic

from conf.errors import TrainingError
from conf.plan.experiment import Experiment
from conf.types.schema import ProfilePlan
from train_core.data.byte_pairs import keep_tokenizer
from train_core.expert_load import ExpertLoads
from train_core.measurement import Performance, StepMetrics
from train_core.optimizer import StepResult
from train_core.parallel.collectives import all_reduce
from train_core.parallel.schedules import forward_only
from train_core.process.stop import StopAsked, Stopped, never
from train_core.process.world import World, result_of_first
from train_core.training.meter import DoneStep, Meter
from train_core.training.trainer import Trainer
from train_core.trial_folder import TrialFolder
from train_core.watch.agreement import require_equal_replicas
from train_core.watch.nonfinite import origin_of_nonfinite

if TYPE_CHECKING:
    from train_core.checkpoints.checkpoint import Checkpoints

OnStep = Callable[[StepMetrics], None]


def train(
    experiment: Experiment,
    world: World,
    cache_dir: Path,
    on_step: OnStep | None = None,
    stop_asked: StopAsked = never,
    trial: TrialFolder | None = None,
) -> Performance:
    """Train `training.num_steps` steps and measure them. Every rank of a joined world calls it.

    Args:
        cache_dir: folder of the token files.
        on_step: called on rank 0 after each step.
        stop_asked: whether a signal has asked this rank to stop; where one was asked, all stop after the same step.
        trial: holds the checkpoints, and what was measured before an interruption; None keeps nothing.

    Raises:
        Stopped: a signal asked for it.
        TrainingError: the loss or the gradient is not finite, replicas have diverged, or nothing is left to measure.
        ConfigError: the text cannot be used.
    """
    # The trainer is built inside the first block, because it multiplies matrices already.
    with (
        same_bits(experiment.training.deterministic),
        _checkpoints(trainer := Trainer(experiment, world, cache_dir), trial) as checkpoints,
    ):
        # A trial that was interrupted goes on: `done` steps are in its last whole checkpoint, their metrics on disk.
        done = checkpoints.restore() if checkpoints is not None else 0
        _keep_tokenizer(trainer, trial)
        history = _history(trial, trainer, done) if trial is not None else []
        if trial is not None and done >= experiment.training.num_steps and not history:
            raise TrainingError(
                f"the last checkpoint in {trial.checkpoints} is from step {done}, the final one, but"
                f" {trial.metrics.name} does not say how its steps went",
                "Train more steps (training.num_steps), or remove the checkpoints to train anew.",
            )
        share = trainer.batches.attended_share
        loads = ExpertLoads(experiment.model, trainer.router_biases, world.device)
        meter = Meter(experiment, world, trainer.mesh.world, stop_asked, history, done, share, loads)
        for step in range(done + 1, experiment.training.num_steps + 1):
            # Only the step itself is timed; what follows in the loop comes between steps.
            with trace_step(trial, world.rank, experiment.profile, step):
                metrics = meter.time_step(step, partial(_finite_step, trainer, step))
            if not trainer.replicas.is_sharded:
                _compare_replicas(trainer, step)
            if (every := experiment.training.evaluate_every) is not None and step % every == 0:
                metrics = metrics.model_copy(update={"held_out_loss": held_out_loss(trainer)})
            if on_step is not None and world.rank == 0:
                on_step(metrics)
            if checkpoints is not None and (checkpoints.is_due(step) or meter.stop_signal):
                checkpoints.save(step)
            # All ranks have the same signal since the step's last collective, so that none stops alone.
            if meter.stop_signal:
                raise Stopped(step, meter.stop_signal, step - done)
        if trial is not None:
            meter.write_timeline(trial)
        return meter.performance()


@contextmanager
def trace_step(trial: TrialFolder | None, rank: int, plan: ProfilePlan, step: int) -> Iterator[None]:
    """Record the block by torch's profiler if the plan asks for it, and leave a Chrome trace in the trial folder."""
    if trial is None or step not in plan.trace_steps or rank not in plan.trace_ranks:
        yield
        return
    from torch.profiler import profile  # here: the import takes a tenth of a second, and most ranks trace nothing

    with profile() as recorded:
        yield
    with trial.writing_trace(step, rank) as draft:
        recorded.export_chrome_trace(str(draft))


def _history(trial: TrialFolder, trainer: Trainer, done: int) -> list[DoneStep]:
    """What was measured before an interruption. One rank reads it for all, as it may be long."""
    return result_of_first(lambda: [DoneStep.of(each) for each in trial.rewind_metrics(done)], trainer.mesh.world)


def _checkpoints(trainer: Trainer, trial: TrialFolder | None) -> AbstractContextManager[Checkpoints | None]:
    """The object that saves and restores; None where a training does neither."""
    experiment = trainer.experiment
    folder = trial.checkpoints if trial is not None and experiment.checkpoint.every_steps is not None else None
    if folder is None and experiment.checkpoint.load is None:
        return nullcontext()
    return trainer.checkpoints(folder, trial.require_current if trial is not None else lambda: None)


def _keep_tokenizer(trainer: Trainer, trial: TrialFolder | None) -> None:
    """Put the tokenizer beside the checkpoints, whose weights mean nothing without it."""
    experiment = trainer.experiment
    if trial is None or experiment.checkpoint.every_steps is None or trainer.mesh.world.rank != 0:
        return
    trial.require_current()
    keep_tokenizer(experiment.data, trainer.batches.tokens, trial.tokenizer)


def _compare_replicas(trainer: Trainer, step: int) -> None:
    """Hold the replicas' weights against each other, in the steps in which that was asked for."""
    every = trainer.experiment.watch.compare_replicas_every
    if every is not None and step % every == 0:
        # Weights that are still being gathered would differ between replicas.
        trainer.replicas.wait_for_weights()
        require_equal_replicas(trainer.stage, trainer.mesh, step)


def _finite_step(trainer: Trainer, step: int) -> StepResult:
    """Take one step. Where its loss or gradient is not finite, the error says where such a value first came about."""
    # A few overflows in a row are how a dynamic loss scale finds its value; a long run of them is a divergence.
    loss_scale, limit = trainer.optimizer.loss_scale, trainer.experiment.watch.max_overflows
    scale = loss_scale.scale
    # Where replicas share out the update, each weight is gathered from the one that has updated it. After that all are
    # equal, whatever happened to them before: a flipped bit is gone, or is everywhere. So they are compared inside it.
    compare = partial(_compare_replicas, trainer, step) if trainer.replicas.is_sharded else lambda: None
    result = trainer.step(step, compare)
    if result.is_finite or (result.overflowed and loss_scale.num_overflows_in_a_row < limit):
        return result
    loss_scale.scale = scale  # the halved scale might not overflow, and the passes are run again to find the origin
    again = partial(trainer.is_finite_again, step)
    origin = origin_of_nonfinite(trainer.stage, trainer.mesh, trainer.masters(), again, result.own_share)
    what = f"training diverged at step {step}: loss {result.loss}, gradient norm {result.gradient_norm}"
    remedy = "Lower training.learning_rate or lengthen training.learning_rate_warmup_steps."
    if result.overflowed:
        row = f"fp16 gradients overflowed in {limit} steps in a row, the last at step {step}"
        what = f"{row} with a loss scale of {scale:g}"
        remedy = "Lower training.learning_rate, or use precision=bf16."
    raise TrainingError(
        f"{what}, {origin.words}", origin.remedy or remedy, origin.blamed, suspects_device=origin.remedy is not None
    )


CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = ":4096:8"
"""Eight buffers of 4 MiB. cuBLAS else shares its memory out among streams as they come, and sums in other orders.

Source: cuBLAS documentation, "Results reproducibility".
"""


@contextmanager
def same_bits(is_wanted: bool) -> Iterator[None]:
    """Inside the block torch takes deterministic kernels, where that is wanted, and refuses operations without one.

    To be entered before the first product on a GPU, after which cuBLAS no longer looks at its variable. CPUs compute
    the same with and without.
    """
    if not is_wanted:
        yield
        return
    os.environ.setdefault(CUBLAS_WORKSPACE, FIXED)
    memory: Any = deterministic  # has its setting only since it was imported, which mypy does not see
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Filling would be a pass over every new tensor, for those who read what they have not written.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        memory.fill_uninitialized_memory = fills


def held_out_loss(trainer: Trainer) -> float:
    """Mean over `training.num_evaluation_batches` global batches, the same at every call. Every rank calls it."""
    experiment, mesh = trainer.experiment, trainer.mesh
    num_batches = experiment.training.num_evaluation_batches
    actions = forward_only(experiment, experiment.num_micro_batches)
    losses = torch.zeros((), device=trainer.pipeline.device)
    with torch.no_grad():
        for batch in range(num_batches):
            losses += trainer.pipeline.run(actions, partial(trainer.batches.held_out_micro_batch, batch))
    trainer.replicas.after_evaluation()  # else ZeRO-3 would keep weights for backward passes that do not come
    # Every tensor rank of the last stage knows the loss; one of them reports it.
    share = (losses if mesh.tensor.rank == 0 else losses * 0).double()
    num_summands = num_batches * experiment.num_micro_batches * mesh.replicas.size
    return float(all_reduce(share, mesh.world).wait()) / num_summands  # the only wait for the device
