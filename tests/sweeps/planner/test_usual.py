"""What a search takes for a batch and a precision that nobody gave."""

from __future__ import annotations

import pytest

from sweeps.planner.request import search_request, usual_overrides
from tests.composed import composed

ON_GPUS = ("model=gpt-175b", "cluster=selene")


@pytest.mark.parametrize(
    ("overrides", "added"),
    [
        (ON_GPUS, ["precision=bf16", "batch.global_batch_size=1536"]),
        (("model=llama-3.1-8b", "cluster=selene"), ["precision=bf16", "batch.global_batch_size=384"]),
        ((*ON_GPUS, "model.seq_length=9000000"), ["precision=bf16", "batch.global_batch_size=3"]),
        ((*ON_GPUS, "precision=fp32"), ["batch.global_batch_size=1536"]),
        ((*ON_GPUS, "batch.global_batch_size=8"), ["precision=bf16"]),
        ((*ON_GPUS, "batch.micro_batch_size=2", "precision.dtype=fp16"), ["batch.global_batch_size=1536"]),
        ((*ON_GPUS, "batch=frontier-22b", "precision=bf16"), []),
        (("model=gpt-175b",), []),  # on this machine, where the defaults suit a try
        (("cluster=selene",), []),
        (("sweep=175b", "cluster=selene"), []),
    ],
)
def test_a_usual_training_is_taken_where_a_model_and_gpus_were_named(
    overrides: tuple[str, ...], added: list[str]
) -> None:
    assert usual_overrides(composed(list(overrides))) == added


def test_several_clusters_take_a_precision_that_all_of_them_compute_in() -> None:
    assert usual_overrides(composed(["model=gpt-175b"]), ["selene", "dgx-h100"])[0] == "precision=bf16"
    assert usual_overrides(composed(["model=gpt-175b"]), ["selene", "local"]) == []


def test_a_search_takes_the_costs_of_the_configured_trainer() -> None:
    usual = ("precision=bf16", "batch.global_batch_size=1536")
    asked = composed([*ON_GPUS, *usual, "trainer=megatron-lm"])
    (space,) = search_request(asked).spaces
    assert space.setting.implementation.name == "megatron-core"
    (space,) = search_request(asked, implementation="trisweep").spaces
    assert space.setting.implementation.name == "trisweep"
