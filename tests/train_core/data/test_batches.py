"""Which sequences a step sees: every one once an epoch, in whatever layout and wherever training goes on."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from costs.axes import Coordinates, Layout
from tests.messages import refused
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.data.batches import Batches
from train_core.data.tokens import open_windows, place_in_permutation, prepare, split_of
from train_core.parallel.groups import build_mesh
from train_core.process.world import World

LENGTH = 16


def windows_of(experiment: Experiment, cache: Path) -> Any:
    return tuple(open_windows(experiment, prepare(experiment, cache)).values())


@pytest.fixture
def counting(experiment_of: ExperimentOf, tmp_path: Path) -> Any:
    """An experiment on 20 sequences, whose first id names each: bytes 0, 1, 2, ... every LENGTH tokens."""
    text = "".join(chr(33 + number) * LENGTH for number in range(20)) + "~"
    (tmp_path / "a.txt").write_text(text)
    return lambda values=None: experiment_of({"data.path": str(tmp_path / "a.txt")} | (values or {}))


@settings(max_examples=50)
@given(size=st.integers(1, 300), seed=st.integers(0, 2**64 - 1))
def test_an_epochs_order_is_a_permutation(size: int, seed: int) -> None:
    assert sorted(place_in_permutation(index, size, seed) for index in range(size)) == list(range(size))


def test_orders_are_mixed_and_differ_between_seeds() -> None:
    size = 10_000
    orders = np.array([[place_in_permutation(index, size, seed) for index in range(size)] for seed in (1, 2)])
    assert (orders[0] == orders[1]).mean() < 0.001
    for order in orders:
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.05
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
    billions = 10**12
    assert len({place_in_permutation(index, billions, 3) for index in range(1000)}) == 1000


def test_every_epoch_visits_every_sequence_once_in_an_order_of_its_own(counting: Any, tmp_path: Path) -> None:
    training, _ = windows_of(counting(), tmp_path)
    epochs = [[int(training(sample)[0]) - 33 for sample in range(start, start + 20)] for start in (0, 20, 40)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_sequence_ends_with_the_first_token_of_the_next(counting: Any, tmp_path: Path) -> None:
    training, _ = windows_of(counting(), tmp_path)
    for sample in range(20):
        ids = training(sample)
        assert len(ids) == LENGTH + 1
        assert ids[-1] == (ids[0] + 1 if ids[0] < 33 + 19 else ord("~"))


def test_what_is_held_out_is_the_end_of_the_stream_and_is_never_trained_on(counting: Any, tmp_path: Path) -> None:
    training, held_out = windows_of(counting({"data.held_out_fraction": 0.25}), tmp_path)
    assert {int(training(sample)[0]) - 33 for sample in range(60)} == set(range(15))
    assert [int(held_out(sample)[0]) - 33 for sample in range(5)] == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("source", ["text", "synthetic"])
def test_a_window_depends_on_seed_and_sample_alone(experiment_of: ExperimentOf, tmp_path: Path, source: str) -> None:
    window, held_out = windows_of(experiment_of({"data.source": source, "data.held_out_fraction": 0.5}), tmp_path)
    again, _ = windows_of(experiment_of({"data.source": source, "data.held_out_fraction": 0.5}), tmp_path)
    other, _ = windows_of(experiment_of({"data.source": source, "training.seed": 7}), tmp_path)
    assert window(35).tolist() == again(35).tolist()
    assert len({tuple(ids.tolist()) for ids in (window(35), window(36), window(350), other(35), held_out(35))}) == 5


def batch_of(world: World, experiment: Experiment, cache: Path) -> tuple[Coordinates, list[list[int]]]:
    """The coordinates of a rank, and the first ids of the sequences of its second step."""
    mesh = build_mesh(Layout.of(experiment), world.rank)
    batches = Batches(experiment, mesh, world.device, cache)
    firsts = [batches.micro_batch(2, index).tokens[0].tolist() for index in range(experiment.num_micro_batches)]
    return mesh.layout.coordinates(world.rank), firsts


def test_every_layout_sees_the_same_global_batch(counting: Any, worlds: Worlds, tmp_path: Path) -> None:
    small = {"batch.global_batch_size": 8, "batch.micro_batch_size": 2}
    ((_, alone),) = worlds(1).run(batch_of, counting(small), tmp_path)
    expected = Counter(itertools.chain(*alone))
    for layout in ({}, {"parallel.tensor_parallel_size": 2}, {"parallel.pipeline_parallel_size": 2}):
        experiment = counting(small | {"parallel.world_size": 4} | layout)
        seen: dict[tuple[int, int], list[Counter[int]]] = {}
        for (stage, _, _, tensor), firsts in worlds(4).run(batch_of, experiment, tmp_path):
            seen.setdefault((stage, tensor), []).append(Counter(itertools.chain(*firsts)))
        assert all(sum(replicas, Counter()) == expected for replicas in seen.values()), layout


def complaint_of(world: World, experiment: Experiment, cache: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        Batches(experiment, build_mesh(Layout.of(experiment), world.rank), world.device, cache)
    return str(caught.value)


def test_data_that_only_rank_0_reads_is_refused_on_every_rank(
    experiment_of: ExperimentOf, worlds: Worlds, tmp_path: Path
) -> None:
    experiment = experiment_of({"data.path": "/nowhere", "parallel.world_size": 2})
    assert (
        worlds(2).run(complaint_of, experiment, tmp_path)
        == ["data.path = '/nowhere': does not exist. Name a text file or a folder of text files."] * 2
    )


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"data.held_out_fraction": 0.99}, "data.held_out_fraction"),
        (
            {"data.held_out_fraction": 0.1, "training.evaluate_every": 2, "training.num_evaluation_batches": 3},
            "training.num_evaluation_batches",
        ),
        ({"model.seq_length": 512}, "data.path"),
    ],
)
def test_a_part_that_is_too_short_is_refused(counting: Any, values: dict[str, Any], key: str) -> None:
    with refused(ConfigError, key):
        split_of(counting(values), 321)
