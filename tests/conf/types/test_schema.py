"""What follows from a configuration: derived sizes and fingerprints."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from conf.compose.load import load
from conf.plan.experiment import Experiment


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
    "override",
    [
        "model.hidden_size=64",
        "training.seed=5",
        "data=synthetic",
        "parallel.zero_stage=1",
        "model.tied_embeddings=false",
    ],
)
def test_the_fingerprint_changes_with_what_is_measured(override: str) -> None:
    assert experiment(override).fingerprint != experiment().fingerprint


@pytest.mark.parametrize(
    "override",
    ["slurm=frontier", "output_dir=elsewhere", "cluster.efficiency.matmul=0.5", "device=v100-16gb"]
    + ["data.cache_dir=/x", "model.head_size=8", "parallel.layers_per_stage=[4]"],
)
def test_the_fingerprint_ignores_what_does_not_change_the_measurement(override: str) -> None:
    assert experiment(override).fingerprint == experiment().fingerprint


def test_a_copy_with_other_values_has_a_fingerprint_of_its_own() -> None:
    point = experiment()
    known = point.fingerprint
    training = point.training.model_copy(update={"seed": point.training.seed + 1})
    assert point.model_copy(update={"training": training}).fingerprint != known
    assert point.fingerprint == known


def test_an_experiment_is_immutable_and_survives_json() -> None:
    point = experiment()
    with pytest.raises(ValidationError):
        point.model = point.model  # type: ignore[misc]
    assert Experiment.model_validate_json(point.model_dump_json()) == point


@pytest.mark.slow
def test_layers_are_spread_evenly_and_the_first_stages_take_what_is_left() -> None:
    base = ["parallel.world_size=4", "parallel.pipeline_parallel_size=4"]
    assert experiment(*base, "model.num_layers=8").layers_per_stage == (2, 2, 2, 2)
    assert experiment(*base, "model.num_layers=10").layers_per_stage == (3, 3, 2, 2)
    assert experiment(*base, "parallel.layers_per_stage=[1,1,1,1]").layers_per_stage == (1, 1, 1, 1)


def test_every_head_of_a_gpt_has_keys_and_values_of_its_own_unless_that_is_changed() -> None:
    assert load(["model.num_attention_heads=8"]).model.num_query_groups == 8
    assert load(["model.num_attention_heads=8", "model.num_query_groups=2"]).model.num_query_groups == 2


def test_widths_of_heads_follow_from_the_model_unless_they_are_given() -> None:
    llama = load(["model=llama-3.1-8b"]).model
    assert (llama.query_size, llama.key_value_size) == (4096, 1024)
    wide = load(["model=llama-3.1-8b", "model.head_size=256"]).model
    assert (wide.query_size, wide.key_value_size) == (8192, 2048)
