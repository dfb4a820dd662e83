"""What follows from a configuration: derived sizes, fingerprints, labels."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from conf.experiment import Experiment
from conf.load import load


def experiment(*overrides: str) -> Experiment:
    return load(overrides).experiment()


def test_sizes_that_follow() -> None:
    point = experiment("parallel.world_size=8", "parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2")
    assert (point.data_parallel_size, point.num_micro_batches) == (2, 4)
    assert (point.num_nodes, point.tasks_per_node) == (1, 8)


def test_nodes_follow_from_the_world_size() -> None:
    point = experiment("parallel.world_size=24", "batch.global_batch_size=24", "cluster.num_nodes=4")
    assert (point.num_nodes, point.tasks_per_node) == (3, 8)


@pytest.mark.parametrize(
    "override", ["model.hidden_size=64", "training.seed=5", "data=synthetic", "parallel.zero_stage=1"]
)
def test_the_fingerprint_changes_with_what_is_measured(override: str) -> None:
    assert experiment(override).fingerprint != experiment().fingerprint


@pytest.mark.parametrize(
    "override", ["slurm=frontier", "output_dir=elsewhere", "cluster.device.matmul_efficiency=0.5", "data.cache_dir=/x"]
)
def test_the_fingerprint_ignores_what_does_not_change_the_measurement(override: str) -> None:
    assert experiment(override).fingerprint == experiment().fingerprint


def test_an_experiment_is_immutable_and_survives_json() -> None:
    point = experiment()
    with pytest.raises(ValidationError):
        point.model = point.model  # type: ignore[misc]
    assert Experiment.model_validate_json(point.model_dump_json()) == point


def test_the_label_tells_the_layout() -> None:
    point = experiment("parallel.world_size=2", "parallel.tensor_parallel_size=2", "parallel.sequence_parallel=true")
    assert point.label == "tp2-pp1-dp1-mb1-gb8-sp"


def test_a_tensor_group_uses_the_closest_link_that_holds_it() -> None:
    cluster = load(["cluster=frontier"]).cluster
    assert [cluster.link_spanning(size).name for size in (1, 2, 4, 8, 16, 5000)] == [
        "card",
        "card",
        "node",
        "node",
        "slingshot",
        "slingshot",
    ]
