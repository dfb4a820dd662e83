"""Intervals of predictions, and what they call outside."""

from __future__ import annotations

import pytest

from conf.cluster_spec import FittedRuns
from conf.experiment import Experiment
from conf.load import settings_of
from conf.tree import with_values
from sweeps.confidence import interval_of
from sweeps.confidence.interval import outside_of
from sweeps.confidence.validated import VALIDATED, validated, written
from sweeps.confidence.width import width_of
from tests.composed import compose_tree
from train_core.costs import IMPLEMENTATIONS, estimate


def planned(**values: object) -> Experiment:
    tree = compose_tree(("model=gpt-175b", "cluster=selene", "precision=bf16", "batch=default"))
    sizes = {"parallel.tensor_parallel_size": 8, "parallel.pipeline_parallel_size": 8, "parallel.world_size": 512}
    sizes |= {"batch.global_batch_size": 1536, "batch.micro_batch_size": 1}
    return settings_of(with_values(tree, sizes | values)).experiment()


def test_four_of_five_measurements_are_expected_around_the_prediction() -> None:
    setup = planned()
    predicted = estimate(setup, IMPLEMENTATIONS["megatron-lm"])
    found = interval_of(setup, "megatron-lm", predicted)
    assert found.low_seconds < predicted.step_seconds < found.high_seconds < 2 * found.low_seconds
    assert found.outside == ()
    assert 0 < found.rivals < 0.3


def test_a_plan_outside_of_what_was_validated_says_on_which_side_and_is_less_certain() -> None:
    setup = planned(**{"model.seq_length": 8192, "batch.micro_batch_size": 4})
    predicted = estimate(setup, IMPLEMENTATIONS["megatron-lm"])
    found = interval_of(setup, "megatron-lm", predicted)
    assert found.outside == ("8,192 tokens a sequence: rows of megatron-lm have at most 2,048",)
    inside = interval_of(planned(**{"batch.micro_batch_size": 4}), "megatron-lm", predicted)
    assert found.low_seconds < inside.low_seconds
    assert found.high_seconds > inside.high_seconds


def test_a_trainer_or_a_device_that_no_row_shows_is_outside() -> None:
    setup = planned()
    assert outside_of(setup, "trisweep", validated()) == ("no published run used trainer trisweep",)
    known = validated().model_copy(update={"devices": ()})
    assert outside_of(setup, "megatron-lm", known) == ("no published run was on device A100-80GB-SXM",)


def test_what_was_learned_is_as_it_is_written() -> None:
    assert validated().low < 1 < validated().high
    assert VALIDATED.read_text() == written(validated())


def test_small_layers_are_less_certain_than_large_ones_and_plans_outside_less_than_those_inside() -> None:
    small = planned(**{"model.hidden_size": 1536, "model.ffn_hidden_size": 6144})
    assert width_of(planned(), 0) < width_of(planned(**{"model.hidden_size": 6144}), 0) < width_of(small, 0)
    assert width_of(planned(**{"batch.micro_batch_size": 4}), 0) == 1.0
    assert width_of(small, 0) < width_of(small, 1) < width_of(small, 2) == width_of(small, 5)


def _fitted_to(*, left_out_error: float, trainers: str, most_devices: int) -> Experiment:
    plan = planned()
    runs = FittedRuns(left_out_error=left_out_error, trainers=trainers, most_devices=most_devices)
    efficiency = plan.cluster.efficiency.model_copy(update={"runs": runs})
    return plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"efficiency": efficiency})})


def test_runs_of_the_clusters_own_make_intervals_that_are_as_wide_as_they_were_off() -> None:
    """Near those runs; of another trainer, or on many more devices, they say nothing of how wide an interval is."""
    near = _fitted_to(left_out_error=0.02, trainers="trisweep", most_devices=512)
    predicted = estimate(near)
    found = interval_of(near, "trisweep", predicted)
    assert found.high_seconds == pytest.approx(1.041 * predicted.step_seconds, rel=1e-3)
    assert found.outside == ()
    assert interval_of(near, "megatron-lm", predicted) == interval_of(planned(), "megatron-lm", predicted)
    far = _fitted_to(left_out_error=0.02, trainers="trisweep", most_devices=64)
    assert interval_of(far, "trisweep", predicted).outside == ("no published run used trainer trisweep",)


def test_what_no_row_of_a_trainer_had_is_named() -> None:
    said = outside_of(planned(**{"precision.dtype": "fp32"}), "megatron-core", validated())
    assert "fp32 products: in no row of megatron-core" in said
    wide = {"parallel.tensor_parallel_size": 16, "parallel.tensor_parallel_across_nodes": True}
    said = outside_of(planned(**wide), "megatron-lm", validated())
    assert "tensor-parallel size 16: rows of megatron-lm have at most 8" in said
    assert "tensor groups that reach over the network: in no row of megatron-lm" in said
