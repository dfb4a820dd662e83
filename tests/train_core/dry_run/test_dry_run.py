"""The whole world on paper: what every stage of a pipeline counts adds up to what formulas say of the model."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError, InfeasiblePlan
from conf.load import load
from train_core.costs import estimate, hardware_flops
from train_core.dry_run.dry_run import dry_run

SMALL = ["model=tiny", "model.num_layers=4", "cluster=frontier", "precision=bf16", "batch.global_batch_size=32"]


@pytest.mark.parametrize("every", [1, 2])
def test_flops_of_all_stages_add_up_to_the_formula(every: int) -> None:
    """Two stages of two layers, eight micro-batches of which only as many are taken as fill them, two tensor ranks."""
    sizes = [
        "parallel.world_size=16",
        "parallel.pipeline_parallel_size=2",
        "parallel.tensor_parallel_size=2",
        "parallel.recompute=full",
        f"parallel.recompute_every={every}",
    ]
    experiment = load([*SMALL, *sizes]).experiment()
    found = dry_run(experiment)
    assert [stage.stage for stage in found.stages] == [0, 1]
    assert experiment.num_micro_batches == 8
    assert (
        found.flops == hardware_flops(experiment.model, 32, "full", 4 // every) == estimate(experiment).hardware_flops
    )


@pytest.mark.parametrize(
    ("override", "error", "key"),
    [
        ("parallel.zero_stage=2", InfeasiblePlan, "parallel.zero_stage"),
        ("training.dropout=0.1", InfeasiblePlan, "training.dropout"),
        ("model.seq_length=1000000000", ConfigError, "model.hidden_size"),
    ],
)
def test_what_the_trainer_cannot_run_is_not_rehearsed(override: str, error: type[ConfigError], key: str) -> None:
    with pytest.raises(error) as refused:
        dry_run(load([*SMALL, override]).experiment())
    assert refused.value.key == key
