"""The whole world on paper: what every stage of a pipeline counts adds up to what formulas say of the model."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.load import load
from train_core.costs import hardware_flops
from train_core.dry_run.dry_run import dry_run

SMALL = ["model=tiny", "model.num_layers=4", "cluster=frontier", "precision=bf16", "batch.global_batch_size=32"]


def test_flops_of_all_stages_add_up_to_the_formula() -> None:
    """Four stages, eight micro-batches of which only as many are rehearsed as fill them, two tensor ranks, replicas."""
    sizes = [
        "parallel.world_size=16",
        "parallel.pipeline_parallel_size=4",
        "parallel.tensor_parallel_size=2",
        "batch.global_batch_size=16",
        "parallel.recompute=full",
    ]
    experiment = load([*SMALL, *sizes]).experiment()
    found = dry_run(experiment)
    assert [stage.stage for stage in found.stages] == [0, 1, 2, 3]
    assert experiment.num_micro_batches == 8
    assert found.flops == hardware_flops(experiment.model, 16, "full")


@pytest.mark.parametrize(
    ("override", "error", "key"),
    [
        ("parallel.recompute_every=2", InfeasiblePlan, "parallel.recompute_every"),
        ("model.seq_length=1000000000", ConfigError, "model.hidden_size"),
    ],
)
def test_what_the_trainer_cannot_run_is_not_rehearsed(override: str, error: type[ConfigError], key: str) -> None:
    with pytest.raises(error) as refused:
        dry_run(load([*SMALL, override]).experiment())
    assert refused.value.key == key
