"""What launcher and Slurm tests share: a sweep of exactly the points that a test names."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from conf.schema import PointSet, Value
from sweeps.plan import make_trials
from sweeps.trial import SweepRecord
from tests.composed import compose_tree, load, load_cluster
from train_core.rates.plan import rates_plan
from train_core.rates.record import AttentionShape, Product, RatesPlan

TESTS = Path(__file__).parent
ONE_WORKER = {"slurm": TESTS / "slurm", "ranks": TESTS / "train_core"}
"""Folders whose tests share a cluster or worlds of ranks. Of others the tests of a file share what it has set up."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest-xdist reads the groups. Workers take these in order: the long ones first, to run side by side."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item.path)))
    items.sort(key=lambda item: _group(item.path) not in ONE_WORKER)


def _group(path: Path) -> str:
    if TESTS / "train_core" / "costs" not in path.parents:
        for group, folder in ONE_WORKER.items():
            if folder in path.parents:
                return group
    return str(path.relative_to(TESTS))


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


@pytest.fixture(scope="session")
def tiny_rates_plan() -> Callable[[int], RatesPlan]:
    """What `trisweep calibrate` measures on CPU ranks, at sizes that take no time and say nothing."""

    def build(world_size: int) -> RatesPlan:
        product = Product(rows=8, columns=8, depth=8)
        shape = AttentionShape(num_sequences=1, num_heads=2, seq_length=16, head_size=8)
        tiny = {
            "dtypes": ("fp32",),
            "large_products": (product,),
            "thin_products": (product,),
            "attention_shapes": (shape,),
            "memory_bytes": 4096,
            "num_small_kernels": 3,
            "message_bytes": (64, 4096),
            "num_samples": 2,
            "sample_seconds": 1e-4,
        }
        return rates_plan(load_cluster("local"), "cpu", world_size).model_copy(update=tiny)

    return build
