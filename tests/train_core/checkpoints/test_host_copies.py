"""Copies for a save are of the state when it was asked for, and no host waits for a GPU to make them.

There is no GPU here. Stand-ins for streams and events say in which order a GPU would be asked, and fake CUDA tensors
what it would be asked for.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train_core.conftest import ExperimentOf
from tests.train_core.rehearsal.gpu_observer import without_kernel
from tests.train_core.rehearsal.test_gpu_path import experiment_of as experiment_on_gpus
from tests.train_core.rehearsal.test_gpu_path import trainer_on_gpu
from train_core.checkpoints import host_copies
from train_core.checkpoints.boxes import boxes_to_write
from train_core.checkpoints.host_copies import HostCopies
from train_core.process.world import World
from train_core.training.trainer import Trainer

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Stream:
    """Says what it is asked to wait for."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def wait_stream(self, other: Stream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.said.append(f"{self.name} waits for what {event.recorded_on} has done")


class Event:
    """Says when the host waits for it."""

    said: list[str]

    def __init__(self, *, blocking: bool) -> None:
        assert blocking, "or the thread that writes would spin, and take a core from the training"

    def record(self, stream: Stream) -> None:
        self.recorded_on = stream.name

    def synchronize(self) -> None:
        self.said.append(f"the host waits for what {self.recorded_on} has done")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What streams and the host wait for, in order."""
    found = list[str]()
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream("copying", found))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream("computing", found))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "said", found, raising=False)
    monkeypatch.setattr(host_copies, "pinned_memory", torch.empty)
    return found


@pytest.fixture
def trainer(experiment_of: ExperimentOf, tmp_path: Path) -> Trainer:
    experiment = experiment_of({"model.num_layers": 1, "batch.global_batch_size": 2})
    return Trainer(experiment, World(0, 1, CPU, "gloo"), tmp_path)


def copied(copies: HostCopies, trainer: Trainer) -> tuple[dict[str, list[Tensor]], host_copies.Wait]:
    """What a trainer on a GPU would have copied: all boxes of every tensor."""
    trainer.optimizer.device = GPU
    pieces, wait = copies.of(boxes_to_write(trainer.replicas))
    trainer.optimizer.device = CPU
    return {key: list(piece.boxes.values()) for key, piece in pieces.items()}, wait


def state_of(trainer: Trainer) -> dict[str, list[Tensor]]:
    pieces, _ = HostCopies(trainer.optimizer).of(boxes_to_write(trainer.replicas))
    return {key: list(piece.boxes.values()) for key, piece in pieces.items()}


def same(left: dict[str, list[Tensor]], right: dict[str, list[Tensor]]) -> bool:
    assert left.keys() == right.keys()
    return all(torch.equal(a, b) for key in left for a, b in zip(left[key], right[key], strict=True))


def test_copies_come_after_the_update_before_and_before_the_next_one(trainer: Trainer, said: list[str]) -> None:
    trainer.step(1)
    expected = state_of(trainer)
    found, wait = copied(HostCopies(trainer.optimizer), trainer)
    assert said == ["copying waits for computing"]
    trainer.step(2)
    assert said[1:] == ["computing waits for what copying has done"]
    wait()
    assert said[2:] == ["the host waits for what copying has done"]
    assert same(found, expected)
    assert not same(found, state_of(trainer))
    trainer.step(3)
    assert len(said) == 3, "one save holds one update up"


def test_memory_that_is_pinned_is_kept_for_the_next_save(trainer: Trainer, said: list[str]) -> None:
    copies = HostCopies(trainer.optimizer)
    first, _ = copied(copies, trainer)
    places = {key: [box.data_ptr() for box in boxes] for key, boxes in first.items()}
    trainer.step(1)
    second, _ = copied(copies, trainer)
    assert {key: [box.data_ptr() for box in boxes] for key, boxes in second.items()} == places
    assert same(second, state_of(trainer))


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_no_host_waits_for_copies_of_a_gpu(zero_stage: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_copies, "pinned_memory", lambda size: torch.empty(size).pin_memory())
    monkeypatch.setattr(host_copies.Piece, "of", lambda shape, boxes: boxes)  # torch makes none of a fake tensor
    values: dict[str, Any] = {"parallel.world_size": 2, "parallel.zero_stage": zero_stage}
    experiment = experiment_on_gpus(values | {"batch.global_batch_size": 4})
    with trainer_on_gpu(experiment, 0, tmp_path) as (trainer, seen):
        trainer.step(1)
        seen.waits.clear()
        _, wait = HostCopies(trainer.optimizer).of(boxes_to_write(trainer.replicas))
        assert seen.waits == []
        wait()
        assert [found.why for found in seen.waits] == ["an event"]
    assert [str(operation) for operation in seen.operations if without_kernel(operation)] == []
