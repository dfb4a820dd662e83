"""`train(experiment, world, ...)`: the measured steps of one experiment, run by every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from torch import Tensor

from conf.errors import TrainingError
from conf.experiment import Experiment
from train_core.agreement import require_equal_replicas
from train_core.data import Batches
from train_core.measure import Meter
from train_core.measurement import Performance, StepMetrics
from train_core.mesh import Layout, build_mesh
from train_core.nonfinite import origin_of_nonfinite
from train_core.optimizer import Optimizer, StepResult
from train_core.parallelize import DTYPES, parallelize
from train_core.pipeline_parallel import PipelineExecutor
from train_core.schedules import actions_of
from train_core.world import World

OnStep = Callable[[StepMetrics], None]
AroundStep = Callable[[int], AbstractContextManager[object]]


class Trainer:
    """One rank's model, optimizer, pipeline and data, put together."""

    def __init__(self, experiment: Experiment, world: World, cache_dir: Path) -> None:
        """Raises ConfigError when the text cannot be used; see `tokens.prepare`."""
        self.experiment = experiment
        self.mesh = build_mesh(Layout.of(experiment), world.rank, world.clock)
        self.batches = Batches(experiment, self.mesh, world.device, cache_dir)
        self.stage = parallelize(experiment, self.mesh, world.device)
        self.optimizer = Optimizer(self.stage, self.mesh, experiment, world.device)
        self.pipeline = PipelineExecutor(
            self.stage, self.mesh, activation_shape(experiment), DTYPES[experiment.precision.dtype]
        )
        self.actions = actions_of(experiment, self.mesh.pipeline.rank)

    def step(self, step: int) -> StepResult:
        """One optimizer step over the global batch; steps count from 1."""
        self.mesh.clock.begin_step(step)
        losses = self.passes(step)
        # Every tensor rank of the last stage knows the loss; one of them reports it.
        share = losses / self.num_summands if self.mesh.tensor.rank == 0 else losses * 0
        with self.mesh.clock.part("optimizer"):
            return self.optimizer.step(step, share)

    def passes(self, step: int) -> Tensor:
        """Forward and backward over this replica's part of the global batch; the sum of its losses."""
        self.stage.randomness.step = step
        self.optimizer.zero_gradients()
        return self.pipeline.run(self.actions, partial(self.batches.micro_batch, step), 1 / self.num_summands)

    @property
    def num_summands(self) -> int:
        """Micro-batches of all replicas."""
        return self.experiment.num_micro_batches * self.mesh.data.size


def train(
    experiment: Experiment,
    world: World,
    cache_dir: Path,
    on_step: OnStep | None = None,
    around_step: AroundStep = nullcontext,
) -> Performance:
    """Train `training.num_steps` steps and measure them. Every rank of a joined world calls it.

    Args:
        cache_dir: folder of the token files.
        on_step: called on rank 0 after each step.
        around_step: entered before each step and left after it, for a profiler.

    Raises:
        TrainingError: the loss or the gradient is not finite, or replicas have diverged.
        ConfigError: the text cannot be used.
    """
    trainer = Trainer(experiment, world, cache_dir)
    meter = Meter(experiment, world, trainer.mesh.world)
    for step in range(1, experiment.training.num_steps + 1):
        with around_step(step):
            metrics = meter.timed(step, partial(_finite_step, trainer, step))
        if (every := experiment.watch.compare_replicas_every) is not None and step % every == 0:
            require_equal_replicas(trainer.stage, trainer.mesh, step)
        if on_step is not None and world.rank == 0:
            on_step(metrics)
    return meter.performance()


def _finite_step(trainer: Trainer, step: int) -> StepResult:
    result = trainer.step(step)
    if not (math.isfinite(result.loss) and math.isfinite(result.gradient_norm)):
        origin = origin_of_nonfinite(trainer.stage, trainer.mesh, partial(trainer.passes, step))
        raise TrainingError(
            f"training diverged at step {step}: loss {result.loss}, gradient norm {result.gradient_norm}, {origin}",
            "Lower training.learning_rate or lengthen training.learning_rate_warmup_steps.",
        )
    return result


def activation_shape(experiment: Experiment) -> tuple[int, int, int]:
    """What passes between stages: (s, b, h), or (s/t, b, h) with sequence parallelism."""
    model, parallel = experiment.model, experiment.parallel
    shards = parallel.tensor_parallel_size if parallel.sequence_parallel else 1
    return model.seq_length // shards, experiment.batch.micro_batch_size, model.hidden_size
