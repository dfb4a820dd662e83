"""Intervals of predictions, and what they call outside."""

from __future__ import annotations

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
    assert outside_of(setup, "trisweep", validated()) == ("trainer trisweep: no published row is its own",)
    known = validated().model_copy(update={"devices": ()})
    assert outside_of(setup, "megatron-lm", known) == ("device A100-80GB-SXM: no published row ran on it",)


def test_what_was_learned_is_as_it_is_written() -> None:
    assert validated().low < 1 < validated().high
    assert VALIDATED.read_text() == written(validated())


def test_small_layers_are_less_certain_than_large_ones_and_plans_outside_less_than_those_inside() -> None:
    small = planned(**{"model.hidden_size": 1536, "model.ffn_hidden_size": 6144})
    assert width_of(planned(), 0) < width_of(planned(**{"model.hidden_size": 6144}), 0) < width_of(small, 0)
    assert width_of(planned(**{"batch.micro_batch_size": 4}), 0) == 1.0
    assert width_of(small, 0) < width_of(small, 1) < width_of(small, 2) == width_of(small, 5)
