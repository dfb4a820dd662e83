"""More can be predicted than trained: what the trainer does not run is said with its key, its value and a remedy."""

from __future__ import annotations

import pytest

from conf.errors import InfeasiblePlan
from conf.load import load, options
from train_core.supported import require_supported

PIPELINE = ["parallel.world_size=4", "parallel.pipeline_parallel_size=4", "cluster=selene"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["parallel.zero_stage=3", "watch.compare_replicas_every=10"],
            r"watch\.compare_replicas_every = 10: .*Use null: under ZeRO-3 there are no replicas",
        ),
    ],
)
def test_what_the_trainer_does_not_run_is_refused(overrides: list[str], message: str) -> None:
    experiment = load(overrides).experiment()
    with pytest.raises(InfeasiblePlan, match=message):
        require_supported(experiment)


@pytest.mark.parametrize("name", options("model"))
def test_every_model_is_supported(name: str) -> None:
    require_supported(load([f"model={name}", "precision=bf16", "cluster=selene"]).experiment())


def test_a_head_size_or_layers_that_say_what_null_means_are_supported() -> None:
    require_supported(load(["model.head_size=8", *PIPELINE, "parallel.layers_per_stage=[1,1,1,1]"]).experiment())
