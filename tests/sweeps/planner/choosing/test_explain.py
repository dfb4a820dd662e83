"""A plan taken apart: its terms, what binds, and what one changed knob would do."""

from __future__ import annotations

import pytest

from conf.compose.settings import Settings
from costs import IMPLEMENTATIONS, estimate
from sweeps.planner.choosing.explain import Explanation, explain, neighbours
from sweeps.planner.plans.strategy import Strategy
from tests.composed import load

PLAN = Strategy.of(
    {
        "world_size": 64,
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 4,
        "virtual_pipeline_size": 1,
        "schedule": "1f1b",
        "layers_per_stage": None,
        "sequence_parallel": True,
        "zero_stage": 1,
        "recompute": "none",
        "recompute_every": 1,
        "micro_batch_size": 2,
        "global_batch_size": 128,
        "tensor_parallel_across_nodes": False,
    }
)
DERIVED = {"data_parallel_size", "virtual_pipeline_size", "layers_per_stage", "schedule"}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load(["model=gpt-22b", "cluster=selene", "precision=bf16"])


def explained(strategy: Strategy, settings: Settings) -> Explanation:
    return explain(strategy, settings, IMPLEMENTATIONS["trisweep"])


def test_terms_and_memory_add_up_and_the_largest_come_first(settings: Settings) -> None:
    explanation = explained(PLAN, settings)
    predicted = estimate(PLAN.experiment(settings))
    assert sum(explanation.terms.values()) == pytest.approx(predicted.step_seconds)
    assert sum(explanation.memory.values()) == predicted.peak_memory_bytes
    for parts in (explanation.terms, explanation.memory):
        assert list(parts.values()) == sorted(parts.values(), reverse=True)
    assert explanation.headroom_bytes == predicted.memory_capacity_bytes - predicted.peak_memory_bytes


def test_every_neighbour_differs_in_its_knob_and_in_nothing_that_does_not_follow(settings: Settings) -> None:
    found = list(neighbours(PLAN, settings, IMPLEMENTATIONS["trisweep"]))
    assert {knob for knob, _ in found} == {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "context_parallel_size",
        "micro_batch_size",
        "sequence_parallel",
        "recompute",
        "zero_stage",
        "schedule",
        "layers_per_stage",
    }
    for knob, changed in found:
        different = {key.split(".")[1] for key, value in changed.settings().items() if value != PLAN.settings()[key]}
        assert knob in different
        assert different <= {knob} | DERIVED
        parallel = changed.parallel
        sizes = parallel.tensor_parallel_size * parallel.pipeline_parallel_size * parallel.context_parallel_size
        assert parallel.world_size == sizes * parallel.data_parallel_size


def test_an_alternative_says_what_it_loses(settings: Settings) -> None:
    plan = estimate(PLAN.experiment(settings))
    for one in explained(PLAN, settings).alternatives:
        if one.slower is not None:
            assert one.estimate is not None
            assert one.slower == pytest.approx(one.estimate.step_seconds / plan.step_seconds - 1)
            assert one.reason is None
        else:
            assert one.reason


def test_alternatives_that_run_come_first_and_the_fastest_of_them(settings: Settings) -> None:
    losses = [one.slower for one in explained(PLAN, settings).alternatives]
    running = [loss for loss in losses if loss is not None]
    assert losses[: len(running)] == sorted(running)


def test_what_does_not_fit_says_by_how_many_gib_and_what_takes_most(settings: Settings) -> None:
    fat = PLAN.with_values(zero_stage=0, micro_batch_size=32, tensor_parallel_size=1)
    fat = fat.with_values(sequence_parallel=False, micro_batch_size=8)
    explanation = explained(fat, settings)
    predicted = estimate(fat.experiment(settings))
    assert not predicted.fits
    assert explanation.reason is not None
    assert f"{predicted.shortfall_bytes / 2**30:.1f} GiB short" in explanation.reason
    assert next(iter(explanation.memory)).removesuffix("_bytes") in explanation.reason
    lean = explained(PLAN.with_values(zero_stage=0, tensor_parallel_size=1, sequence_parallel=False), settings)
    assert "optimizer alone takes" in str(lean.reason)


def test_what_cannot_exist_says_why(settings: Settings) -> None:
    explanation = explained(PLAN.with_values(tensor_parallel_size=16), settings)
    assert explanation.estimate is None
    assert explanation.reason is not None
    assert "is more than the 8 devices of a node" in explanation.reason


def test_a_neighbour_that_cannot_exist_says_why(settings: Settings) -> None:
    """A tensor-parallel group of 8 fills a node; the next larger does not fit inside."""
    wide = PLAN.with_values(tensor_parallel_size=8)
    wider = [
        one for one in explained(wide, settings).alternatives if (one.knob, one.value) == ("tensor_parallel_size", "16")
    ]
    assert [one.estimate for one in wider] == [None]
    assert "is more than the 8 devices of a node" in (wider[0].reason or "")


def test_an_interleaved_plan_has_other_numbers_of_chunks_and_lighter_ends(settings: Settings) -> None:
    chunked = PLAN.with_values(schedule="interleaved", virtual_pipeline_size=3)
    knobs = [knob for knob, _ in neighbours(chunked, settings, IMPLEMENTATIONS["trisweep"])]
    assert knobs.count("virtual_pipeline_size") == 2
    assert "layers_per_stage" in knobs


@pytest.mark.parametrize(
    ("trainer", "compiled", "knobs"),
    [
        ("trisweep", False, ["compile_layers", "matmul_recipe"]),
        ("trisweep", True, ["matmul_recipe"]),
        ("megatron-core", False, ["matmul_recipe"]),
    ],
)
def test_narrow_products_are_held_against_wide_ones_and_against_compiled_casts(
    trainer: str, compiled: bool, knobs: list[str]
) -> None:
    words = ["model=gpt-22b", "cluster=dgx-h100", f"training.compile_layers={str(compiled).lower()}"]
    narrow, wide = (load([*words, f"precision={each}"]) for each in ("fp8", "bf16"))
    costs = IMPLEMENTATIONS[trainer]
    explanation = explain(PLAN, narrow, costs)
    seconds = {
        each.knob: each.estimate.step_seconds
        for each in explanation.alternatives
        if each.knob in ("matmul_recipe", "compile_layers") and each.estimate is not None
    }
    assert sorted(seconds) == knobs
    of_wide = PLAN.experiment(wide) if costs.name == "trisweep" else PLAN.setup(wide)
    assert seconds["matmul_recipe"] == estimate(of_wide, costs).step_seconds
    # Casts operation by operation cost more than narrow products save; compiled ones, or those of others, do not.
    assert explanation.estimate is not None
    assert (explanation.estimate.step_seconds > seconds["matmul_recipe"]) == ("compile_layers" in knobs)
    assert not {"matmul_recipe", "compile_layers"} & {each.knob for each in explain(PLAN, wide, costs).alternatives}
