"""The estimate of a job over several types of devices: what the planner's search says of the same plan."""

from __future__ import annotations

import pytest

from conf.plan.experiment import Experiment
from costs import estimate, model_flops
from sweeps.planner.mixed import MixedStrategy, choose_mixed
from sweeps.planner.request import mixed_request
from tests.composed import composed, load

CASES = {
    "two types": (["model=gpt-22b", "precision=bf16", "batch.global_batch_size=32"], "selene:16,dgx-h100:16"),
    "three types": (
        ["model=llama-2-7b", "model.num_layers=7", "precision=fp16", "batch.global_batch_size=4"],
        "dgx1-v100:4,selene:8,mosaicml-a100-40gb:4",
    ),
}


def experiment_of(found: MixedStrategy, overrides: list[str]) -> Experiment:
    return load([*overrides, *found.overrides()]).experiment()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_plan_costs_what_the_search_for_mixed_plans_says(case: str) -> None:
    overrides, offers = CASES[case]
    for found in choose_mixed(mixed_request(composed(overrides), offers, "trisweep").spaces, top=3).best:
        predicted = estimate(experiment_of(found, overrides))
        assert predicted.step_terms == found.step_terms
        assert (predicted.worst_stage, predicted.peak_memory_bytes) == (found.worst_stage, found.worst_stage_bytes)
        assert predicted.fits


def test_the_types_share_the_model_flops_and_utilization_is_of_the_sum_of_their_peaks() -> None:
    overrides, offers = CASES["two types"]
    (found,) = choose_mixed(mixed_request(composed(overrides), offers, "trisweep").spaces, top=1).best
    experiment = experiment_of(found, overrides)
    predicted = estimate(experiment)
    assert [block.layers_per_stage for block in predicted.blocks] == [block.layers_per_stage for block in found.blocks]
    flops = [block.model_flops_per_second_per_device * block.num_ranks for block in predicted.blocks]
    needed = model_flops(experiment.model, experiment.batch.global_batch_size) / predicted.step_seconds
    assert sum(flops) == pytest.approx(needed)
    peaks = sum(block.peak_flops_per_second * block.num_ranks for block in predicted.blocks)
    assert predicted.model_flops_utilization == pytest.approx(needed / peaks)
    assert max(block.peak_memory_bytes for block in predicted.blocks) >= predicted.peak_memory_bytes


def test_halves_of_one_cluster_cost_what_the_whole_costs() -> None:
    overrides = ["model=gpt-22b", "precision=bf16", "cluster=selene", "batch.global_batch_size=16"]
    overrides += ["parallel.world_size=32", "parallel.tensor_parallel_size=4", "parallel.pipeline_parallel_size=4"]
    whole, halves = (estimate(load([*overrides, *more]).experiment()) for more in ([], ["mixed=selene:16+selene:16"]))
    assert halves.step_seconds == pytest.approx(whole.step_seconds, rel=1e-12)
    assert (halves.stages, halves.worst_stage) == (whole.stages, whole.worst_stage)
    assert whole.blocks == ()


@pytest.mark.parametrize("num_dense_layers", [1, 40])
def test_dense_layers_count_once_wherever_the_first_block_ends(num_dense_layers: int) -> None:
    overrides = ["model=deepseek-v2", f"model.experts.num_dense_layers={num_dense_layers}", "precision=bf16"]
    overrides += ["cluster=selene", "mixed=selene:64+dgx-h100:64", "parallel.world_size=128"]
    overrides += ["parallel.pipeline_parallel_size=4", "parallel.expert_parallel_size=8", "batch.global_batch_size=512"]
    experiment = load(overrides).experiment()
    predicted = estimate(experiment)
    flops = [block.model_flops_per_second_per_device * block.num_ranks for block in predicted.blocks]
    needed = model_flops(experiment.model, experiment.batch.global_batch_size)
    assert sum(flops) * predicted.step_seconds == pytest.approx(needed, rel=1e-9)
