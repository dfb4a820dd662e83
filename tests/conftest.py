"""What launcher and Slurm tests share: a sweep of exactly the points that a test names."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from conf.load import compose_tree, load
from conf.schema import PointSet, Value
from sweeps.plan import make_trials
from sweeps.trial import SweepRecord


@pytest.fixture(scope="session")
def build_record() -> Callable[..., SweepRecord]:
    """A record that measures the given points of the tiny model, composed with the overrides."""

    def build(points: Sequence[dict[str, Value]], overrides: Sequence[str]) -> SweepRecord:
        chosen = ["sweep=smoke", "training.num_steps=3", *overrides]
        settings, tree = load(chosen), compose_tree(chosen)
        assert settings.sweep is not None
        trials = make_trials(tree, PointSet(axes={}, points=tuple(points), baseline=points[0]), {})
        return SweepRecord(
            name="test",
            mode="cluster",
            spec=settings.sweep,
            tracking=settings.tracking,
            git_sha="test",
            created=time.time(),
            plan=(),
            trials=tuple(trial.model_copy(update={"selected": True}) for trial in trials),
        )

    return build
