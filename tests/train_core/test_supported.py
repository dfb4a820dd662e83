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
        (["model=llama-2-7b"], r"model\.family = 'llama': can be predicted, but this trainer does not run it yet"),
        (["model.gated_mlp=true"], r"model\.gated_mlp = True: .*such as model=gpt-175b"),
        (["model.tied_embeddings=false"], r"model\.tied_embeddings = False"),
        (["model.num_query_groups=2"], r"model\.num_query_groups = 2"),
        (["model.head_size=16"], r"model\.head_size = 16"),
        ([*PIPELINE, "parallel.schedule=zero-bubble"], r"parallel\.schedule = 'zero-bubble': .*Use schedule=1f1b"),
        (
            [*PIPELINE, "model.num_layers=8", "parallel.schedule=interleaved", "parallel.virtual_pipeline_size=2"],
            r"parallel\.schedule = 'interleaved'",
        ),
        (
            [*PIPELINE, "model.num_layers=6"],
            r"parallel\.layers_per_stage = \[2, 2, 1, 1\]: .*divides model\.num_layers",
        ),
        (["parallel.zero_stage=2"], r"parallel\.zero_stage = 2: .*Use zero_stage 0 or 1"),
        (["parallel.zero_stage=3"], r"parallel\.zero_stage = 3"),
        (["cluster=selene", "precision=fp16"], r"precision\.dtype = 'fp16': .*Use precision=bf16"),
    ],
)
def test_what_the_trainer_does_not_run_is_refused(overrides: list[str], message: str) -> None:
    experiment = load(overrides).experiment()
    with pytest.raises(InfeasiblePlan, match=message):
        require_supported(experiment)


@pytest.mark.parametrize("name", [name for name in options("model") if load([f"model={name}"]).model.family == "gpt"])
def test_every_gpt_is_supported(name: str) -> None:
    require_supported(load([f"model={name}", "precision=bf16", "cluster=selene"]).experiment())


def test_a_head_size_or_layers_that_say_what_null_means_are_supported() -> None:
    require_supported(load(["model.head_size=8", *PIPELINE, "parallel.layers_per_stage=[1,1,1,1]"]).experiment())
