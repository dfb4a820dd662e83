"""Setups that are priced together get to the bit what each gets alone."""

from __future__ import annotations

from itertools import product

import pytest

from conf.plan.experiment import Experiment
from costs import IMPLEMENTATIONS, estimate, estimates, executed_flops, hardware_flops
from costs.estimate import MOST_AT_ONCE
from tests.composed import load

PLACES = {
    "GPT 22B on Frontier": (["model=gpt-22b", "cluster=frontier", "parallel.world_size=64"], "megatron-deepspeed"),
    "Mixtral on H100": (
        ["model=mixtral-8x7b", "trainer=megatron-lm", "cluster=dgx-h100", "parallel.world_size=64"],
        "megatron-core",
    ),
    "Llama 8B on H100": (["model=llama-3.1-8b", "cluster=dgx-h100", "parallel.world_size=64"], "trisweep"),
}
CHANGES: list[dict[str, object]] = [
    {"pipeline_parallel_size": 1, "schedule": "1f1b"},
    {"pipeline_parallel_size": 4, "schedule": "1f1b"},
    {"pipeline_parallel_size": 4, "schedule": "zero-bubble"},
    {"pipeline_parallel_size": 4, "schedule": "interleaved", "virtual_pipeline_size": 2},
    {"pipeline_parallel_size": 1, "schedule": "1f1b", "zero_stage": 3},
    {"pipeline_parallel_size": 8, "schedule": "1f1b", "recompute": "full", "recompute_every": 2},
]


def experiments(overrides: list[str]) -> list[Experiment]:
    first = load([*overrides, "batch.global_batch_size=256", "batch.micro_batch_size=1"]).experiment()
    return [
        first.model_copy(update={"parallel": first.parallel.model_copy(update={"tensor_parallel_size": t, **changed})})
        for t, changed in product((1, 2), CHANGES)
    ]


@pytest.mark.slow
def test_setups_of_several_models_trainers_and_schedules_cost_together_what_each_costs_alone() -> None:
    asked = [(each, IMPLEMENTATIONS[name]) for texts, name in PLACES.values() for each in experiments(texts)]
    assert estimates(asked) == [estimate(*each) for each in asked]


def test_more_setups_than_are_priced_at_once_keep_their_order() -> None:
    short, long = experiments(PLACES["Llama 8B on H100"][0])[:2]
    implementation = IMPLEMENTATIONS["trisweep"]
    found = estimates([(short, implementation), (long, implementation)] * MOST_AT_ONCE)
    assert found == [estimate(short, implementation), estimate(long, implementation)] * MOST_AT_ONCE


def test_recomputed_layers_are_counted_by_what_each_of_them_is() -> None:
    """Of four layers the first, which has no experts, and the third are recomputed."""
    overrides = [
        "model=moe-proxy",
        "model.experts.num_dense_layers=1",
        "parallel.recompute=full",
        "parallel.recompute_every=2",
        "cluster=local",
    ]
    experiment = load([*overrides, "precision=fp32", "parallel.world_size=1"]).experiment()
    model, size = experiment.model, experiment.batch.global_batch_size
    assert (model.num_layers, model.num_dense_layers) == (4, 1)
    both = hardware_flops(model, size, "full", 2, num_dense_recomputed=1)
    assert executed_flops(experiment, IMPLEMENTATIONS["megatron-core"]) == both
    assert both < hardware_flops(model, size, "full", 2)
