"""One rank's model, optimizer, pipeline and batches, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from conf.plan.experiment import Experiment
from costs.axes import OPTIMIZER, Layout
from train_core.checkpoints.boxes import own_boxes
from train_core.data.batches import Batches
from train_core.data.byte_pairs import tokenizer_of
from train_core.expert_load import RouterBiases
from train_core.model.initialize import DTYPES
from train_core.optimizers.optimizer import Optimizer, StepResult
from train_core.parallel.data_parallel import Replicas, replicas_of
from train_core.parallel.groups import build_mesh
from train_core.parallel.mesh import Mesh
from train_core.parallel.offload import HOST, HostMemory
from train_core.parallel.parallelize import FirstValue, Stage, parallelize
from train_core.parallel.pipeline_parallel import TRANSFERS, PipelineExecutor, Transfers
from train_core.parallel.schedules import actions_of
from train_core.process.world import World

if TYPE_CHECKING:
    from train_core.checkpoints.checkpoint import Checkpoints


@dataclass(frozen=True)
class TrainerParts:
    """The parts of a trainer, where a rehearsal has parts of its own; see `rehearsal.stage`.

    Attributes:
        replicas: from a stage, the mesh and the experiment.
        transfers: how activations and their gradients travel between stages.
        host: where offloaded activations wait.
    """

    batches: type[Batches] = Batches
    replicas: Callable[[Stage, Mesh, Experiment], Replicas] = replicas_of
    transfers: Transfers = TRANSFERS
    host: HostMemory = HOST


OF_TRAININGS = TrainerParts()


class Trainer:
    """One rank's model, optimizer, pipeline and data, put together."""

    def __init__(
        self, experiment: Experiment, world: World, cache_dir: Path, parts: TrainerParts = OF_TRAININGS
    ) -> None:
        """Raises ConfigError when the text cannot be used; see `tokens.prepare`."""
        self.experiment = experiment
        self.mesh = build_mesh(Layout.of(experiment), world.rank, world.clock, world.timeout)
        # Data first: a wrong path is found before a model is built.
        self.batches = parts.batches(experiment, self.mesh, world.device, cache_dir)
        first_value = self._loaded_weights(world)
        self.stage = parallelize(experiment, self.mesh, world.device, first_value, parts.host)
        self.replicas = parts.replicas(self.stage, self.mesh, experiment)
        self.optimizer = Optimizer(self.replicas, self.mesh, experiment, world.device)
        self.router_biases = RouterBiases(experiment.model, self.stage, self.mesh, world.device)
        if first_value is not None:
            self.router_biases.start_from(first_value)
        self.pipeline = PipelineExecutor(
            *(self.stage, self.mesh, activation_shape(experiment), DTYPES[experiment.precision.dtype], parts.transfers),
            separate_documents=experiment.data.separate_documents,
        )
        self.actions = actions_of(experiment, self.mesh.pipeline.rank)

    def _loaded_weights(self, world: World) -> FirstValue | None:
        """The weights that the configuration names; None where the first ones are drawn."""
        if self.experiment.checkpoint.load is None:
            return None
        from train_core.checkpoints.huggingface import loaded_weights  # here, as it imports a reader of their format

        tokenizer = partial(tokenizer_of, self.experiment.data, self.batches.token_file)
        return loaded_weights(self.experiment, self.mesh.world, world.device, tokenizer)

    def step(self, step: int, before_update: Callable[[], None] = lambda: None) -> StepResult:
        """One optimizer step over the global batch; steps count from 1.

        Args:
            before_update: called when all passes have been run, and the weights are still those of the step before.
        """
        self.mesh.clock.begin_step(step)
        share = self._loss_share(step)
        before_update()
        with self.mesh.clock.part(OPTIMIZER):
            result = self.optimizer.step(step, share)
            if result.is_finite:
                self.router_biases.update()
            return result

    def is_finite_again(self, step: int) -> bool:
        """Run a step's passes and sums once more, without its update; whether its loss and norm are finite."""
        return self.optimizer.is_finite(self._loss_share(step))

    def _loss_share(self, step: int) -> Tensor:
        """Run all passes; returns this rank's summand of the mean loss."""
        losses = self.passes(step)
        # Every tensor rank of the last stage knows the loss; one of them reports it.
        return losses / self.num_summands if self.mesh.tensor.rank == 0 else losses * 0

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The fp32 weights that this rank updates, in pieces, with the names that the whole model has for them."""
        for state, boxes in zip(self.optimizer.states, own_boxes(self.replicas), strict=True):
            for box in boxes:
                yield box.name, box.of(state.masters)

    def passes(self, step: int) -> Tensor:
        """Run all passes over this replica's part of the global batch; returns the sum of its losses."""
        self.stage.randomness.step = step
        self.router_biases.begin()
        # Before the passes, because late gathers of weights start here and travel beside the first of them.
        self.replicas.zero_gradients()
        # Losses are divided before backward, so that the sum of all gradients is the gradient of the mean loss.
        scale = self.optimizer.loss_scale.scale / self.num_summands
        return self.pipeline.run(self.actions, partial(self.batches.micro_batch, step), scale)

    def checkpoints(self, folder: Path | None, require_current: Callable[[], None] = lambda: None) -> Checkpoints:
        """The object that saves and restores this trainer; the import takes each rank a second.

        Args:
            folder: gets the checkpoints; None saves none.
            require_current: raises where this process may write nothing more.
        """
        from train_core.checkpoints.checkpoint import Checkpoints

        parts = self.optimizer, self.replicas, self.router_biases
        name = None if self.batches.tokens is None else self.batches.tokens.name
        return Checkpoints(*parts, self.experiment, self.mesh.world, folder, require_current, name)

    @property
    def num_summands(self) -> int:
        """The number of losses of all replicas in a step, over whose equally many tokens the loss is a mean."""
        return self.experiment.num_micro_batches * self.mesh.replicas.size


def activation_shape(experiment: Experiment) -> tuple[int, int, int]:
    """The shape of the tensors between stages: (n, b, h), or (n/t, b, h) with sequence parallelism, and n = s/c."""
    model, parallel = experiment.model, experiment.parallel
    shards = parallel.tensor_parallel_size if parallel.sequence_parallel else 1
    tokens = model.seq_length // parallel.context_parallel_size
    return tokens // shards, experiment.batch.micro_batch_size, model.hidden_size
