"""Small sweeps to run on this machine, and a progress that stays silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conf.load import compose_tree, load
from conf.schema import PointSet, SlurmSpec, Value
from sweeps.plan import make_trials
from sweeps.trial import SweepFolder, SweepRecord

Point = dict[str, Value]


class Silent:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def show(self, states: Sequence[Any]) -> None:
        self.shown.append(list(states))


@pytest.fixture
def progress() -> Silent:
    return Silent()


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "runs" / "test-local")


@pytest.fixture(scope="session")
def slurm_of() -> Callable[..., SlurmSpec]:
    return lambda *overrides: load(overrides).slurm


@pytest.fixture(scope="session")
def record_of() -> Callable[..., SweepRecord]:
    """A record that measures exactly the given points, of the tiny model unless overrides say otherwise."""

    def build(points: Sequence[Point], *overrides: str) -> SweepRecord:
        chosen = ["sweep=smoke", "training.num_steps=3", *overrides]
        settings = load(chosen)
        assert settings.sweep is not None
        tree = compose_tree(chosen)
        trials = make_trials(tree, PointSet(axes={}, points=tuple(points), baseline=points[0]), {})
        return SweepRecord(
            name="test",
            mode="proxy",
            spec=settings.sweep,
            tracking=settings.tracking,
            git_sha="test",
            created=time.time(),
            plan=(),
            trials=tuple(trial.model_copy(update={"selected": True}) for trial in trials),
        )

    return build
