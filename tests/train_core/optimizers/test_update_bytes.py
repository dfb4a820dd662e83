"""The bytes of an update are those that the trainer's operations read and write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conf.plan.experiment import Experiment
from costs.estimate import plans_of, setting_of
from costs.step.step_time import update_bytes
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.parallel.data_parallel import ShardReduction
from train_core.process.world import World
from train_core.rehearsal.stage import resident_weights
from train_core.training.trainer import Trainer

MODEL: dict[str, object] = {
    "model.num_layers": 2,
    "model.hidden_size": 128,
    "model.ffn_hidden_size": 512,
    "data.source": "synthetic",
    "training.clip_gradient_norm": None,
}
TWO = {"parallel.world_size": 2}


class MovedBytes(TorchDispatchMode):
    """Adds up what operations read and write, as their schemas say. Views and collectives move nothing here."""

    ONLY_WRITE = ("aten::zero_", "aten::copy_", "aten::fill_")
    ONLY_READ = ("grads",)
    """Of AdamW's kernel, whose schema says that it writes them, as it does where it has to unscale them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        schema = func._schema
        aliases = [returned.alias_info for returned in schema.returns if returned.alias_info is not None]
        is_view = any(not alias.is_write for alias in aliases)
        if func.namespace != "aten" or is_view:
            return out
        given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | (kwargs or {})
        for argument in schema.arguments:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            reads = not (writes and schema.name in self.ONLY_WRITE)
            times = reads + (writes and argument.name not in self.ONLY_READ)
            self.num_bytes += times * sum(tensor.nbytes for tensor in _tensors(given.get(argument.name)))
        if not aliases:
            self.num_bytes += sum(tensor.nbytes for tensor in _tensors(out))
        return out


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def moved_by_update(world: World, experiment: Experiment, folder: Path) -> tuple[int, int, int]:
    """Bytes of zeroing, norm, update and sharing, the parameters that the rank holds, and those that it updates."""
    trainer = Trainer(experiment, world, folder)
    trainer.step(1)
    losses = trainer.passes(2)
    owned = sum(len(weights) for weights in trainer.replicas.own_weights())
    held = sum(weights.numel() for weights in resident_weights(trainer.replicas))
    for reduction in getattr(trainer.replicas, "reductions", ()):
        if isinstance(reduction, ShardReduction):
            reduction._collect()  # the last pass's own work, which would else be done in the update
    with MovedBytes() as moved:
        trainer.optimizer.step(2, losses)
        trainer.replicas.zero_gradients()
    return moved.num_bytes, held, owned


CASES: dict[str, dict[str, object]] = {
    "fp32": {"precision.dtype": "fp32"},
    "bf16": {"precision.dtype": "bf16"},
    "bf16 gradients": {"precision.dtype": "bf16", "precision.gradient_dtype": "bf16"},
    "fp16": {
        "precision.dtype": "fp16",
        "precision.initial_loss_scale": 8.0,
        "cluster.device.peak_flops_per_second": {"fp16": 1e11},
    },
    "zero1": {**TWO, "precision.dtype": "bf16", "parallel.zero_stage": 1},
    "zero2": {**TWO, "precision.dtype": "bf16", "parallel.zero_stage": 2},
    "zero3": {**TWO, "precision.dtype": "bf16", "parallel.zero_stage": 3},
}


@pytest.mark.parametrize("case", CASES)
def test_an_update_moves_what_is_predicted(
    case: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(MODEL | CASES[case])
    moved, held, owned = worlds(experiment.parallel.world_size).run(moved_by_update, experiment, tmp_path)[0]
    setting, plans = setting_of(experiment), plans_of([experiment])
    predicted = update_bytes(setting, plans, np.array([held]), np.array([owned]))
    assert moved == pytest.approx(predicted[0], rel=5e-3)
