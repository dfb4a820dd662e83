"""Small sweeps to run on this machine, and a progress that stays silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conf.schema import SlurmSpec
from sweeps.trial import SweepFolder, SweepRecord
from tests.composed import load


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
def record_of(build_record: Callable[..., SweepRecord]) -> Callable[..., SweepRecord]:
    """`record_of([{"key": value}, ...], "override", ...)`"""
    return lambda points, *overrides: build_record(points, overrides)
