"""Intervals of predictions, and what they call outside."""

from __future__ import annotations

import pytest

from conf.experiment import Experiment
from conf.load import settings_of
from conf.tree import with_values
from sweeps.confidence import interval_of
from sweeps.confidence.interval import outside_of
from sweeps.confidence.kinds import KINDS, kind_of
from sweeps.confidence.validated import VALIDATED, validated, written
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
    setup = planned(**{"model.seq_length": 8192})
    predicted = estimate(setup, IMPLEMENTATIONS["megatron-lm"])
    found = interval_of(setup, "megatron-lm", predicted)
    assert found.outside == ("8,192 tokens a sequence: rows of megatron-lm have at most 2,048",)
    inside = interval_of(planned(), "megatron-lm", predicted)
    assert found.low_seconds < inside.low_seconds
    assert found.high_seconds > inside.high_seconds


def test_a_trainer_or_a_device_that_no_row_shows_is_outside() -> None:
    setup = planned()
    assert outside_of(setup, "trisweep", validated()) == ("trainer trisweep: no published row is its own",)
    known = validated().model_copy(update={"devices": ()})
    assert outside_of(setup, "megatron-lm", known) == ("device A100-80GB-SXM: no published row ran on it",)


def test_every_kind_of_plan_has_its_errors_and_the_file_is_as_it_is_written() -> None:
    assert set(validated().errors) == set(KINDS)
    assert all(found.low < 1 < found.high for found in validated().errors.values())
    assert VALIDATED.read_text() == written(validated())


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "dense"),
        ({"model.hidden_size": 1536, "model.ffn_hidden_size": 6144}, "small layers"),
    ],
)
def test_errors_differ_between_kinds_of_plans(changed: dict[str, object], kind: str) -> None:
    assert kind_of(planned(**changed)) == kind
