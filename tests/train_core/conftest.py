"""Forked worlds: real ranks over gloo, started once per size and used for many layouts."""

from __future__ import annotations

import gc
import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

import pytest
import torch

from conf.compose.settings import Settings
from conf.compose.tree import with_values
from conf.plan.experiment import Experiment
from conf.types.schema import Value
from tests.composed import compose_tree
from train_core.process.world import Seat, World, choose_device, file_rendezvous, join, leave
from train_core.training.trainer import Trainer
from train_core.trial.folder import TrialFolder

ALONE = World(0, 1, torch.device("cpu"), "gloo")
ANSWER_SECONDS = 240
ALL_HAVE_ANSWERED = "all have answered"
Arguments = TypeVarTuple("Arguments")
Answer = TypeVar("Answer")


class ForkedWorld:
    """Some ranks that wait for work: each `run` joins them anew, as a job would."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self.folder, self.num_runs = size, folder, 0
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe() for _ in range(size)]
        self.ends = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, size, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    def run(self, function: Callable[[World, *Arguments], Answer], *arguments: *Arguments) -> list[Answer]:
        """`function(world, *arguments)` on every rank; the results in rank order.

        No rank that succeeded leaves before all have answered: another may still be connecting to it.
        """
        self.num_runs += 1
        rendezvous = file_rendezvous(self.folder / f"world-{self.size}-{self.num_runs}")
        for end in self.ends:
            end.send((function, arguments, rendezvous))
        answers = [self._answer(rank, end) for rank, end in enumerate(self.ends)]
        for end in self.ends:
            end.send(ALL_HAVE_ANSWERED)
        for rank, (succeeded, value) in enumerate(answers):
            assert succeeded, f"rank {rank} of {self.size} failed:\n{value}"
        return [value for _, value in answers]

    def _answer(self, rank: int, end: Connection) -> tuple[bool, Any]:
        """Whether it succeeded, and with what."""
        assert end.poll(ANSWER_SECONDS), f"rank {rank} of {self.size} did not answer"
        return end.recv()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _serve(rank: int, size: int, end: Connection) -> None:
    gc.freeze()  # what is there before the first run need not be looked at after each
    while True:
        function, arguments, rendezvous = end.recv()
        try:
            world = join(Seat(rank, size, rank, rendezvous), choose_device("cpu", rank))
            try:
                end.send((True, function(world, *arguments)))
                assert end.recv() == ALL_HAVE_ANSWERED
            finally:
                leave(world)
        except Exception:
            end.send((False, traceback.format_exc()))
            assert end.recv() == ALL_HAVE_ANSWERED
        gc.collect()  # a trainer is a circle that holds its groups, whose threads wake a hundred times a second


Worlds = Callable[[int], ForkedWorld]
TrialOf = Callable[[Mapping[str, object]], TrialFolder]
AtStep = Callable[[int, int, Callable[[Trainer], None]], None]


class ExperimentOf(Protocol):
    """`experiment_of({"dotted.key": value, ...})`; the schema checks the values."""

    def __call__(self, values: Mapping[str, object] | None = None) -> Experiment: ...


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """worlds(4) is the world of four ranks."""
    import_module("torch._dynamo")  # recomputation needs it; once here instead of for seconds in every rank
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("worlds")
    running: dict[int, ForkedWorld] = {}

    def world_of(size: int) -> ForkedWorld:
        if size not in running:
            running[size] = ForkedWorld(size, folder)
        return running[size]

    yield world_of
    for world in running.values():
        world.stop()


@pytest.fixture(scope="session")
def experiment_of() -> ExperimentOf:
    """An experiment from dotted values over a small model, on text."""
    tree = compose_tree(["model=tiny", "cluster=local"])

    def build(values: Mapping[str, object] | None = None) -> Experiment:
        defaults: dict[str, Value] = {
            "model.num_layers": 8,
            "model.hidden_size": 32,
            "model.ffn_hidden_size": 64,
            "model.num_attention_heads": 8,
            "model.num_query_groups": 8,
            "model.seq_length": 16,
            "data.max_bytes": 100_000,
            "training.num_steps": 5,
            "training.num_warmup_steps": 1,
        }
        return Settings.model_validate(with_values(tree, defaults | cast(dict[str, Value], values or {}))).experiment()

    return build


@pytest.fixture
def trial_of(tmp_path: Path, experiment_of: ExperimentOf) -> TrialOf:
    def build(values: Mapping[str, object]) -> TrialFolder:
        trial = TrialFolder(tmp_path / "trials" / "one")
        trial.write_trial({"experiment": experiment_of(values).model_dump(mode="json")})
        return trial

    return build


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> AtStep:
    """Have one rank do something before a step; ranks are forked, so they inherit the patch."""

    def arrange(rank: int, step: int, act: Callable[[Trainer], None]) -> None:
        undisturbed = Trainer.step

        def disturbed(self: Trainer, number: int, *rest: Any) -> Any:
            if (self.mesh.world.rank, number) == (rank, step):
                act(self)
            return undisturbed(self, number, *rest)

        monkeypatch.setattr(Trainer, "step", disturbed)

    return arrange


@pytest.fixture
def a_node_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forked, so they inherit the patch."""

    def joined(seat: Seat, *rest: Any) -> World:
        monkeypatch.setattr("train_core.process.world.this_node", lambda: f"node{seat.rank}")
        return join(seat, *rest)

    monkeypatch.setattr("train_core.job.rank.join", joined)
