"""`train(experiment, world, ...)`: the measured steps of one experiment, run by every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from conf.plan.experiment import Experiment
from train_core.data.byte_pairs import keep_tokenizer
from train_core.data.tokens import figures_of_mixture
from train_core.expert_load import ExpertLoads
from train_core.optimizers.optimizer import StepResult
from train_core.process.gpu_settings import same_bits
from train_core.process.stop import StopAsked, Stopped, never
from train_core.process.world import World
from train_core.training.meter import Meter, attended_share, held_out_losses, history_of, trace_step
from train_core.training.trainer import Trainer
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Performance, StepMetrics
from train_core.watch.agreement import require_equal_replicas
from train_core.watch.nonfinite import nonfinite_error, origin_of_nonfinite, own_share_of

if TYPE_CHECKING:
    from train_core.checkpoints.checkpoint import Checkpoints

LOGGER = logging.getLogger(__name__)
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
        _say_that_nothing_is_compared(trainer)
        num_steps, axis = experiment.training.num_steps, trainer.mesh.world
        history = history_of(trial, done, num_steps, axis) if trial is not None else []
        share = partial(attended_share, trainer.batches)
        loads = ExpertLoads(experiment.model, trainer.router_biases, world.device)
        meter = Meter(experiment, world, axis, stop_asked, history, done, share, loads)
        for step in range(done + 1, num_steps + 1):
            # Only the step itself is timed; what follows in the loop comes between steps.
            with trace_step(trial, world.rank, experiment.profile, step):
                metrics = meter.time_step(step, partial(_finite_step, trainer, step))
            if not trainer.replicas.is_sharded:
                _compare_replicas(trainer, step)
            metrics = _with_data(metrics, trainer, step)
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


def _with_data(metrics: StepMetrics, trainer: Trainer, step: int) -> StepMetrics:
    """The metrics of a step, with what was seen of the sets of a mixture, and the losses of what is held out."""
    experiment = trainer.experiment
    figures, held_out = figures_of_mixture(experiment, trainer.batches.tokens, step), metrics.held_out_loss
    if (every := experiment.training.evaluate_every) is not None and step % every == 0:
        held_out, of_sets = held_out_losses(trainer)
        figures |= {f"eval/{name}/loss": loss for name, loss in of_sets.items()}
    return metrics.model_copy(update={"held_out_loss": held_out, "figures": figures})


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
    keep_tokenizer(experiment.data, trainer.batches.token_file, trial.tokenizer)


def _say_that_nothing_is_compared(trainer: Trainer) -> None:
    """Where it was asked for and no rank has another with the same weights, as in a pipeline of single ranks."""
    mesh, every = trainer.mesh, trainer.experiment.watch.compare_replicas_every
    if every is not None and mesh.world.rank == 0 and mesh.world.size == mesh.pipeline.size:
        words = "no two ranks hold the same weights, so that nothing is compared"
        LOGGER.warning("watch.compare_replicas_every = %s: %s", every, words)


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
    own_share = own_share_of(result, trainer.replicas.treatments, trainer.mesh)
    result = result._replace(summands=None)  # the passes that run again need the memory of these gradients
    origin = origin_of_nonfinite(trainer.stage, trainer.mesh, trainer.masters(), again, own_share)
    raise nonfinite_error(step, result, scale, limit, origin)
