"""Intervals of predictions, and what they call outside."""

from __future__ import annotations

from math import exp, log

import pytest

from benchmarks.fitting.learned import yaml_text
from conf.compose.load import settings_of
from conf.compose.tree import with_values
from conf.own_files import at_hand
from conf.plan.experiment import Experiment
from conf.types.cluster_spec import FittedRuns
from conf.types.trainer_spec import Practice
from costs import IMPLEMENTATIONS, estimate
from sweeps.confidence import Interval, half_width, interval_around, interval_of, load_validated, outside_of, width_of
from sweeps.practice import PRACTICES, load_levels
from tests.composed import compose_tree


def planned(**values: object) -> Experiment:
    tree = compose_tree(("model=gpt-175b", "cluster=selene", "precision=bf16", "batch=default"))
    sizes = {"parallel.tensor_parallel_size": 8, "parallel.pipeline_parallel_size": 8, "parallel.world_size": 512}
    sizes |= {"batch.global_batch_size": 1536, "batch.micro_batch_size": 1}
    return settings_of(with_values(tree, sizes | values)).experiment()


def test_an_interval_is_as_wide_as_runs_of_its_practice_differ() -> None:
    """Tuned runs take what is predicted; first runs take that at the least, and often half as much again."""
    setup = planned(**{"batch.micro_batch_size": 4})
    found: dict[Practice, Interval] = {
        practice: interval_around(10.0, setup, "megatron-lm", practice) for practice in PRACTICES.values()
    }
    for practice, interval in found.items():
        level = load_levels()[practice]
        assert (interval.low_seconds, interval.high_seconds) == pytest.approx(
            (10 * exp(level.low), 10 * exp(level.high))
        )
        assert interval.rivals == load_validated().rivals
    assert found["tuned"].high_seconds < found["recipe"].high_seconds < found["first-run"].high_seconds
    assert found["recipe"].low_seconds < found["first-run"].low_seconds <= 10
    assert interval_around(10.0, setup, "megatron-lm") == found["first-run"]  # a trainer that is not ours
    assert "most first runs take" in found["first-run"].in_words
    assert "most runs by a maker's recipe take" in interval_of(setup, "trisweep", estimate(setup)).in_words


def test_a_plan_outside_of_what_was_validated_says_on_which_side() -> None:
    setup = planned(**{"model.seq_length": 8192, "batch.micro_batch_size": 4})
    predicted = estimate(setup, IMPLEMENTATIONS["megatron-lm"])
    found = interval_of(setup, "megatron-lm", predicted)
    assert found.outside == ("8,192 tokens a sequence: rows of megatron-lm have at most 2,048",)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"megatron-lm": 2}, ()),  # of the device nothing is said: where few measured it, predictions are no worse
        ({"megatron-lm": 1}, ("one published source alone used trainer megatron-lm",)),
        ({}, ("no published run used trainer megatron-lm",)),
    ],
)
def test_what_few_sources_measured_is_named(
    sources: dict[str, int], said: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = load_validated().model_copy(update={"sources": sources})
    monkeypatch.setattr("sweeps.confidence.load_validated", lambda: known)
    assert outside_of(planned(), "megatron-lm") == said


def test_a_trainer_that_no_row_shows_is_outside() -> None:
    assert outside_of(planned(), "trisweep") == ("no published run used trainer trisweep",)


def test_what_was_learned_is_as_it_is_written() -> None:
    assert 0 < load_validated().rivals < 0.2
    assert at_hand("sweeps/validated.yaml").read_text() == yaml_text(load_validated())


def test_small_layers_are_less_certain_than_large_ones_as_far_as_rows_show() -> None:
    small = planned(**{"model.hidden_size": 1536, "model.ffn_hidden_size": 6144})
    assert width_of(planned()) < width_of(planned(**{"model.hidden_size": 6144})) < width_of(small)
    assert width_of(planned(**{"batch.micro_batch_size": 4})) == 1.0
    sizes = {"hidden_size": 96, "ffn_hidden_size": 384, "seq_length": 64}
    tiny = planned(**{f"model.{name}": size for name, size in sizes.items()})
    assert width_of(small) < width_of(tiny) < 2
    narrow, wide = (interval_around(1.0, each, "megatron-lm", "tuned") for each in (planned(), tiny))
    assert log(wide.high_seconds) / log(narrow.high_seconds) == pytest.approx(width_of(tiny) / width_of(planned()))


def _fitted_to(*, left_out_error: float, trainers: str, most_devices: int) -> Experiment:
    plan = planned()
    runs = FittedRuns(left_out_error=left_out_error, trainers=trainers, most_devices=most_devices, num_runs=5)
    efficiency = plan.cluster.efficiency.model_copy(update={"runs": runs})
    return plan.model_copy(update={"cluster": plan.cluster.model_copy(update={"efficiency": efficiency})})


def test_runs_of_the_clusters_own_make_intervals_that_are_as_wide_as_they_were_off() -> None:
    """Near those runs; of another trainer, or on many more devices, they say nothing of how wide an interval is."""
    near = _fitted_to(left_out_error=0.02, trainers="trisweep", most_devices=512)
    predicted = estimate(near)
    found = interval_of(near, "trisweep", predicted)
    assert found.high_seconds == pytest.approx(1.041 * predicted.step_seconds, rel=1e-3)
    assert found.outside == ()
    assert found.in_words == "After 5 of your runs: most take 0.96 to 1.04 times this."
    assert interval_of(near, "megatron-lm", predicted) == interval_of(planned(), "megatron-lm", predicted)
    far = _fitted_to(left_out_error=0.02, trainers="trisweep", most_devices=64)
    assert interval_of(far, "trisweep", predicted).outside == ("no published run used trainer trisweep",)


def test_errors_that_stay_large_make_intervals_that_still_hold_four_of_five() -> None:
    """What 26 runs of a proxy on disturbed cores were off by, each predicted by a fit to the others."""
    logs = [0.069, 0.08, 0.08, 0.09, 0.145, 0.17, 0.18, 0.19, 0.19, 0.21, 0.22, 0.225, 0.306, 0.346, 0.373, 0.38]
    logs += [0.386, 0.397, 0.42, 0.456, 0.46, 0.5, 0.61, 0.65, 0.68, 1.03]
    assert sum(each <= half_width(0.351) for each in logs) / len(logs) >= 0.8
    assert half_width(0.02) == 0.04


def test_what_no_row_of_a_trainer_had_is_named() -> None:
    said = outside_of(planned(**{"precision.dtype": "fp32"}), "megatron-core")
    assert "fp32 products: in no row of megatron-core" in said
    wide = {"parallel.tensor_parallel_size": 16, "parallel.tensor_parallel_across_nodes": True}
    said = outside_of(planned(**wide), "megatron-lm")
    assert "tensor-parallel size 16: rows of megatron-lm have at most 8" in said
    assert "tensor groups that reach over the network: in no row of megatron-lm" in said
