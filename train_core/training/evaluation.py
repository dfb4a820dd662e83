"""The held-out loss: only forward passes, over sequences that are never trained on."""

from __future__ import annotations

from functools import partial

import torch

from train_core.parallel.collectives import all_reduce
from train_core.parallel.schedules import forward_only
from train_core.training.trainer import Trainer


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
