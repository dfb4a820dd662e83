"""The weights that a training starts from, where the configuration names some."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from train_core.checkpoints.huggingface_config import is_weights, warn_of_weights
from train_core.parallel.collectives import Axis
from train_core.parallel.parallelize import FirstValue
from train_core.process.first_rank import result_of_first


def loaded_weights(
    experiment: Experiment, world: Axis, device: torch.device, tokenizer: Callable[[], str | None] = lambda: None
) -> FirstValue | None:
    """The Hugging Face weights that `checkpoint.load` names; None where it names none. All ranks call it.

    A checkpoint of this trainer is not read here: it holds the optimizer's state too, and is restored later.

    Args:
        tokenizer: see `warn_of_weights`.

    Raises:
        ConfigError: they were to be resumed, or are of another model.
    """
    path = experiment.checkpoint.load
    if path is None:
        return None
    if not result_of_first(partial(is_weights, path), world):
        return None
    if experiment.checkpoint.resume:
        problem = f"has no step to go on after: checkpoint.load = {path} holds weights alone"
        raise ConfigError("checkpoint.resume", True, problem, "Name a checkpoint, or use checkpoint.resume=false.")
    from train_core.checkpoints import huggingface  # here, because it imports a reader of the files' format

    if world.rank == 0:  # once for the job, and not once for each rank
        warn_of_weights(experiment, tokenizer)
    weights = huggingface.Weights(path, experiment.model)
    return lambda name, shape, experts: weights.value(name, shape, experts.rank, experts.size).to(device)
