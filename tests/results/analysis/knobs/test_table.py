"""Trials as points: which knobs vary, and what their values are."""

from __future__ import annotations

import pytest

from conf.types.schema import Value
from results.analysis.knobs.sensitivity import published_order
from results.analysis.knobs.table import KnobPoint, columns_of, knob_words, measured_table, predicted_table
from tests.results.conftest import WriteSweep, performance, trial
from train_core.trial.measurement import Outcome


def test_measured_and_predicted_rates_stand_in_tables_of_their_own(write_sweep: WriteSweep) -> None:
    trials = [
        trial("one"),
        trial("two", world_size=2, tensor_parallel_size=2),
        trial("out", world_size=2, micro_batch_size=2),
        trial("dead", world_size=2, pipeline_parallel_size=2),
        trial("lacks", world_size=1, micro_batch_size=2),
    ]
    how = {
        "one": performance(100.0),
        "two": performance(150.0, 2),
        "out": (Outcome.OUT_OF_MEMORY, "no memory"),
        "dead": (Outcome.FAILED, "boo"),
    }
    sweep = write_sweep(trials, how)
    measured, predicted = measured_table(sweep.read()), predicted_table(sweep.record.trials)
    assert (measured.rates_are, predicted.rates_are) == ("measured", "predicted")
    assert [point.rate for point in measured.points] == [100.0 * 1e9, 75.0 * 1e9, None]
    assert measured.num_others == 1
    assert [point.rate is None for point in predicted.points] == [False, False, True, False, True]


def test_knobs_that_always_change_together_are_one() -> None:
    points = [
        KnobPoint({"tensor_parallel_size": t, "sequence_parallel": t > 1, "zero_stage": z}, 1.0)
        for t in (1, 2)
        for z in (0, 1)
    ]
    first, second = columns_of(points)
    assert (first.name, first.together_with) == ("tensor_parallel_size", ("sequence_parallel",))
    assert first.words == "tensor-parallel size (with sequence parallelism)"
    assert (second.name, second.values) == ("zero_stage", (0, 1))


def test_of_the_batch_and_its_micro_batches_the_one_with_fewer_values_is_the_knob() -> None:
    """The study varies steps of accumulation, from which the batch follows; most sweeps hold the batch."""
    study = [
        KnobPoint({"global_batch_size": g * m, "num_micro_batches": g, "micro_batch_size": m}, 1.0)
        for g in (5, 10)
        for m in (4, 5, 6)
    ]
    assert [column.name for column in columns_of(study)] == ["num_micro_batches", "micro_batch_size"]
    held = [
        KnobPoint({"global_batch_size": 64, "num_micro_batches": 64 // m, "micro_batch_size": m}, 1.0) for m in (4, 8)
    ]
    assert [column.name for column in columns_of(held)] == ["micro_batch_size"]


@pytest.mark.parametrize("num_runs", [1, 3])
def test_a_value_that_the_baseline_alone_has_is_no_knob_however_often_it_was_measured(
    write_sweep: WriteSweep, num_runs: int
) -> None:
    listed = [trial("one"), trial("two", tensor_parallel_size=2, world_size=2)]
    outside = trial("base", is_baseline=True, micro_batch_size=4)
    runs = [outside.model_copy(update={"trial_id": f"base-r{number}"}) for number in range(num_runs)]
    trials = (*listed, *runs)
    sweep = write_sweep(trials, {each.trial_id: performance(100.0) for each in trials})
    found = measured_table(sweep.read())
    assert [point.settings["micro_batch_size"] for point in found.points] == [1, 1]


def test_values_are_in_the_order_in_which_people_count_them() -> None:
    points = [
        KnobPoint({"recompute": value, "a.b": text}, 1.0)
        for value in ("full", "none", "selective")
        for text in ("x", None, 3)
    ]
    recompute, other = columns_of(points)
    assert recompute.values == ("none", "selective", "full")
    assert other.values == (3, None, "x")
    assert knob_words(other.name) == "b"


def test_only_the_sweep_that_repeats_a_study_has_a_published_order() -> None:
    places = published_order("frontier-study")
    assert [place.knob for place in places][:3] == [
        "micro_batch_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
    ]
    assert {place.confirmed for place in places} == {"no"}
    assert published_order("175b") == []


def test_a_key_that_some_points_leave_to_the_configuration_has_its_value_there() -> None:
    """Blocks of axes vary different keys, and an axis on a condition is missing in some points."""
    key = "training.weight_decay"
    swept = [trial(name, micro_batch_size=m) for name, m in (("a", 1), ("b", 2), ("c", 1), ("d", 2))]
    points: list[dict[str, Value]] = [{}, {key: 0.1}, {"training.clip_gradient_norm": 1.0}, {key: 0.2}]
    trials = [one.model_copy(update={"point": point}) for one, point in zip(swept, points, strict=True)]
    table = predicted_table(trials)
    assert [point.settings[key] for point in table.points] == [0.1, 0.1, 0.1, 0.2]
    assert {column.name: column.values for column in columns_of(table.points)}[key] == (0.1, 0.2)
