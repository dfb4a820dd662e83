"""A checkpoint of any layout is read by any other without a bit of difference, and by no other model."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import mixture_with
from train_core.checkpoints.boxes import Box, own_boxes
from train_core.checkpoints.checkpoint import LAZILY, Checkpoints, allow_sockets, group_of_writers
from train_core.parallel.collectives import Axis
from train_core.process.world import World
from train_core.training.trainer import Trainer

MODEL = {"model.num_layers": 4, "batch.global_batch_size": 8, "batch.micro_batch_size": 2}


def layout(tensor: int, pipeline: int, data: int, zero_stage: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "parallel.world_size": tensor * pipeline * data * more.get("context_parallel_size", 1),
        "parallel.tensor_parallel_size": tensor,
        "parallel.pipeline_parallel_size": pipeline,
        "parallel.zero_stage": zero_stage,
        **{f"parallel.{key}": value for key, value in more.items()},
    }


def save_after(world: World, experiment: Experiment, folder: Path, num_steps: int) -> dict[str, Any]:
    trainer = Trainer(experiment, world, folder / "tokens")
    for step in range(1, num_steps + 1):
        trainer.step(step)
    with trainer.checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(num_steps)
        for state in trainer.optimizer.states:  # what is written is what was there when `save` was called
            before = {name: tensor.clone() for name, tensor in state.tensors().items()}
            for tensor in state.tensors().values():
                tensor.add_(1.0)
            checkpoints.wait()
            for name, tensor in state.tensors().items():
                tensor.copy_(before[name])
    return held_by(trainer)


def load_from(world: World, experiment: Experiment, folder: Path) -> dict[str, Any]:
    trainer = Trainer(experiment, world, folder / "tokens")
    trainer.checkpoints(None).restore()
    return held_by(trainer)


def held_by(trainer: Trainer) -> dict[str, Any]:
    """Every box of state on this rank, routers' biases, and the size of its weights by their names in the stage."""
    optimizer = trainer.optimizer
    parts: list[Any] = [
        (kind, box, box.of(flat).clone().numpy())
        for boxes, state in zip(own_boxes(trainer.replicas), optimizer.states, strict=True)
        for kind, flat in state.tensors().items()
        for box in boxes
    ]
    for name, bias in trainer.router_biases.tensors().items():
        shape = tuple(bias.shape)
        parts.append(("biases", Box(name, shape, (0,), shape, start=0), bias.clone().numpy()))
    weights = {name: float(parameter.detach().float().norm()) for name, parameter in trainer.stage.named_parameters()}
    return {"parts": parts, "weights": weights}


def whole(answers: list[dict[str, Any]]) -> dict[tuple[str, str], np.ndarray]:
    found: dict[tuple[str, str], np.ndarray] = {}
    for kind, box, values in (part for answer in answers for part in answer["parts"]):
        tensor = found.setdefault((kind, box.name), np.full(box.shape, np.nan, np.float32))
        tensor[tuple(slice(first, first + size) for first, size in zip(box.offsets, box.sizes, strict=True))] = values
    return found


WRITERS = {
    "fp32": layout(2, 2, 2, zero_stage=1, sequence_parallel=True),
    "bf16": layout(2, 1, 1, zero_stage=3, context_parallel_size=2),
}
READERS = [
    layout(1, 1, 1),
    layout(1, 2, 1, schedule="interleaved", virtual_pipeline_size=2),
    layout(1, 2, 1, schedule="zero-bubble", layers_per_stage=[3, 1]),
    layout(4, 1, 1),
    layout(1, 1, 4, zero_stage=3),
    layout(1, 2, 1, zero_stage=1, context_parallel_size=2),
    layout(2, 1, 2, zero_stage=2),
]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_any_layout_reads_what_any_other_wrote(
    dtype: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values = MODEL | {"precision.dtype": dtype}
    wrote = experiment_of(values | WRITERS[dtype])
    saved = whole(worlds(wrote.parallel.world_size).run(save_after, wrote, tmp_path, 2))
    assert {kind for kind, _ in saved} == {"weights", "first_moments", "second_moments"}
    assert not any(np.isnan(tensor).any() for tensor in saved.values())
    assert all(np.any(tensor != 0) for (kind, _), tensor in saved.items() if kind != "weights")
    load = {"checkpoint.load": str(tmp_path / "checkpoints")}
    for read in READERS:
        answers = worlds(read["parallel.world_size"]).run(load_from, experiment_of(values | read | load), tmp_path)
        loaded = whole(answers)
        assert loaded.keys() == saved.keys()
        for key, tensor in saved.items():
            np.testing.assert_array_equal(loaded[key], tensor, err_msg=f"{key} as {read}")
    assert answers[0]["weights"] == answers[2]["weights"], "replicas hold other weights"


SPREAD_EXPERTS = layout(2, 2, 2, 2, sequence_parallel=True, expert_parallel_size=4, expert_tensor_parallel_size=1)
EXPERT_READERS = [
    layout(1, 1, 1),
    layout(1, 1, 2, zero_stage=1, expert_parallel_size=2),
    layout(1, 2, 2, schedule="zero-bubble", layers_per_stage=[3, 1], expert_parallel_size=2),
]


def test_experts_are_read_by_any_number_of_ranks_that_share_them_out(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values = MODEL | mixture_with(balance_bias=0.01) | {"batch.micro_batch_size": 1}
    wrote = experiment_of(values | SPREAD_EXPERTS)
    saved = whole(worlds(8).run(save_after, wrote, tmp_path, 2))
    assert not any(np.isnan(tensor).any() for tensor in saved.values())
    biases = [tensor for (kind, _), tensor in saved.items() if kind == "biases"]
    assert len(biases) == 3, "the first of four layers is dense"
    assert all(np.any(bias != 0) for bias in biases)
    load = {"checkpoint.load": str(tmp_path / "checkpoints")}
    for read in EXPERT_READERS:
        loaded = whole(
            worlds(read["parallel.world_size"]).run(load_from, experiment_of(values | read | load), tmp_path)
        )
        assert loaded.keys() == saved.keys()
        for key, tensor in saved.items():
            np.testing.assert_array_equal(loaded[key], tensor, err_msg=f"{key} as {read}")


def test_biases_that_a_training_had_none_of_start_at_0(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    saved = whole(worlds(1).run(save_after, experiment_of(MODEL | mixture_with()), tmp_path, 2))
    biased = mixture_with(balance_bias=0.01, balance_loss=0.0) | {"checkpoint.load": str(tmp_path / "checkpoints")}
    loaded = whole(worlds(1).run(load_from, experiment_of(MODEL | biased), tmp_path))
    biases = {key: tensor for key, tensor in loaded.items() if key[0] == "biases"}
    assert len(biases) == 3
    assert not any(np.any(bias) for bias in biases.values())
    assert loaded.keys() - biases.keys() == saved.keys()


def test_the_thread_that_writes_uses_the_gpu_of_its_rank(
    experiment_of: ExperimentOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for copies by streams of its current device, which in a new thread is GPU 0."""
    chosen = list[tuple[str, torch.device]]()
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: chosen.append((threading.current_thread().name, gpu)))
    optimizer, nothing = cast("Any", SimpleNamespace(device=torch.device("cuda", 1))), cast("Any", None)
    with Checkpoints(optimizer, nothing, nothing, experiment_of(), Axis(), None) as checkpoints:
        checkpoints.writer.submit(int).result()
    assert chosen == [("checkpoint_0", torch.device("cuda", 1))]


def bytes_copied_to_save(world: World, experiment: Experiment, folder: Path) -> int:
    trainer = Trainer(experiment, world, folder / "tokens")
    written = list[dict[str, Any]]()
    with trainer.checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints._write = lambda pieces, wait, facts: written.append(pieces)  # type: ignore[method-assign]
        checkpoints.save(1)
    boxes = [box for pieces in written for piece in pieces.values() for box in piece.boxes.values()]
    states = {flat.untyped_storage().data_ptr() for one in trainer.optimizer.states for flat in one.tensors().values()}
    assert not states & {box.untyped_storage().data_ptr() for box in boxes}
    return sum({box.untyped_storage().data_ptr(): box.untyped_storage().nbytes() for box in boxes}.values())


def test_replicas_copy_only_the_share_that_each_of_them_writes(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    (whole,) = worlds(1).run(bytes_copied_to_save, experiment_of(MODEL | layout(1, 1, 1)), tmp_path)
    assert whole > 0
    shares = worlds(2).run(bytes_copied_to_save, experiment_of(MODEL | layout(1, 1, 2)), tmp_path)
    assert sum(shares) == whole
    assert max(shares) < 0.6 * whole


def num_sockets() -> int:
    files = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum(str(file).startswith("socket:") for file in files)


def sockets_of_groups(world: World, setting: str) -> tuple[int, int]:
    """How many sockets this rank has more after it has made a group of writers: as it is, and as a user has set it."""
    before = num_sockets()
    group_of_writers(world.size)
    lazily = num_sockets() - before
    assert LAZILY not in os.environ, "what is made later would be made lazily, too"
    os.environ[LAZILY] = setting
    group_of_writers(world.size)
    assert os.environ.pop(LAZILY) == setting
    return lazily, num_sockets() - before - lazily


def test_writers_connect_only_when_they_speak_unless_the_user_says_otherwise(worlds: Worlds) -> None:
    for lazily, at_once in worlds(4).run(sockets_of_groups, "0"):
        assert lazily < 3 <= at_once, "three other ranks"


def test_a_rank_may_have_a_socket_for_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank has, because all others speak with it."""
    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.update(now=limit))
    allow_sockets(64)
    assert limits["now"] == (1024, 4096)
    allow_sockets(1024)
    assert limits["now"] == (2048, 4096)
    allow_sockets(8192)
    assert limits["now"] == (4096, 4096)
