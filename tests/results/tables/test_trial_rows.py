"""The table of a sweep, whatever state its folders are in."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pandas
import pytest

from conf.types.schema import Value
from results.tables.documents import report_document, status_document
from results.tables.trial_rows import TrialRow, plan_rows
from sweeps.folder.journal import History
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.collected_table import collect
from tests.conftest import BuildRecord
from tests.results.conftest import WriteSweep, finish, performance, trial, write_steps
from train_core.trial.measurement import Outcome, StepMetrics

LR, SEED = "training.learning_rate", "training.seed"
TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("torn", world_size=2),
    trial("waiting", world_size=2, pipeline_parallel_size=2),
    trial("impossible", world_size=3, tensor_parallel_size=2),
)


def frame_of(folder: SweepFolder) -> pandas.DataFrame:
    sweep = Sweep.stored_in(folder)
    return collect(sweep.record, sweep.read())


def whole_rows(document: TrialRow) -> list[TrialRow]:
    """The rows of a document, each with what it has in common with the others."""
    return [document["common"] | row for row in document["trials"]]


def row(frame: pandas.DataFrame, trial_id: str) -> pandas.Series:
    found = frame.set_index("trial_id").loc[trial_id]
    assert isinstance(found, pandas.Series), "several rows of one trial"
    return found


def test_every_trial_is_a_row_in_the_order_of_the_record(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS, {"base": performance(100.0)}).folder
    frame = frame_of(folder)
    assert list(frame["trial_id"]) == [member.trial_id for member in TRIALS]
    assert list(frame["outcome"]) == ["COMPLETED", "PENDING", "PENDING", "PENDING", "INFEASIBLE"]


def test_predicted_and_measured_have_columns_of_their_own_with_the_same_field_names(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS, {"base": performance(100.0)}).folder
    base = row(frame_of(folder), "base")
    assert base["measured_tokens_per_second"] == 100.0
    assert base["predicted_step_seconds"] == pytest.approx(1.11)
    assert base["predicted_low_step_seconds"] < 1.11 < base["predicted_high_step_seconds"]
    assert base["measured_step_seconds"] == pytest.approx(2.56)
    assert base["scaling_efficiency"] == 1.0


def test_what_only_a_later_point_sets_has_a_column_too(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS).folder
    frame = frame_of(folder)
    assert row(frame, "waiting")["point.pipeline_parallel_size"] == 2
    assert math.isnan(row(frame, "base")["point.pipeline_parallel_size"])


@pytest.fixture
def seeds(tmp_path: Path, build_record: BuildRecord) -> Sweep:
    """Two learning rates, the first of the configuration's seed and of another; the last trial diverged."""
    points: list[dict[str, Value]] = [{LR: 1e-3}, {LR: 1e-3, SEED: 2}, {LR: 1e-2}, {LR: 1.0}]
    record = build_record(points, []).model_copy(update={"objective": ("loss",)})
    folder = SweepFolder(tmp_path / "lr-local")
    folder.write_record(record)
    ends, rates = ((3.0, 2.0), (3.002, 2.0), (2.0, 2.5), (9.0, 9.0)), (100.0, 100.0, 50.0, 900.0)
    for member, last, rate in zip(record.trials, ends, rates, strict=True):
        losses = (*[5.0] * 18, *last)
        finish(folder, member, performance(rate, losses=losses, final_loss=losses[-1]))
    return Sweep.stored_in(folder)


@pytest.mark.parametrize("rows_of", ["csv", "report", "status"])
def test_where_a_loss_is_sought_a_row_has_that_loss_and_the_place_of_the_sweep_s_table(
    seeds: Sweep, rows_of: str
) -> None:
    trials = seeds.read()
    rows: list[Any]
    if rows_of == "csv":
        table = collect(seeds.record, trials).astype(object)
        rows = table.where(table.notna(), None).to_dict("records")
    elif rows_of == "report":
        rows = whole_rows(report_document(seeds, trials, {}))
    else:
        rows = whole_rows(status_document(seeds, trials, [], History(), {}))
    assert [row["objective_loss"] for row in rows] == pytest.approx([2.5, 2.501, 2.25, 9.0])
    assert [row["measured_final_loss"] for row in rows] == [2.0, 2.0, 2.5, 9.0]
    assert [row["place"] for row in rows] == ["2", "2", "1", None]


def test_where_the_rate_is_sought_no_row_has_another_objective(seeds: Sweep) -> None:
    record = seeds.record.model_copy(update={"objective": ("throughput",)})
    frame = collect(record, seeds.read())
    assert not [name for name in frame.columns if name.startswith("objective_")]
    assert list(frame["place"]) == ["2=", "2=", "4", "1"]


def test_a_point_has_the_configuration_s_value_of_what_it_leaves_as_it_is(seeds: Sweep) -> None:
    frame = collect(seeds.record, seeds.read())
    assert list(frame[f"point.{SEED}"]) == [1234, 2, 1234, 1234]
    plan = seeds.record.model_copy(update={"plan": seeds.record.trials})
    assert [row[f"point.{SEED}"] for row in plan_rows(plan)] == [1234, 2, 1234, 1234]


def test_an_unmeasured_trial_has_a_prediction_and_no_measurement(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS).folder
    waiting = row(frame_of(folder), "waiting")
    measured = [name for name in waiting.index if name.startswith("measured_")]
    assert waiting[measured].isna().all()
    assert waiting["predicted_step_seconds"] > 0


def test_a_trial_with_steps_and_no_end_is_running_and_shows_its_last_step(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS).folder
    write_steps(folder, "two", [1, 2, 3])
    two = row(frame_of(folder), "two")
    assert (two["outcome"], two["num_steps_done"], two["num_steps"]) == ("RUNNING", 3, 6)
    assert two["live_loss"] == pytest.approx(5.0 - math.log1p(2))
    assert pandas.isna(two["measured_step_seconds"])


def test_a_corrupt_measurement_is_set_aside_and_reported_and_the_rest_is_unharmed(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS, {"base": performance(100.0), "torn": performance(150.0)}).folder
    files = folder.trial("torn")
    files.measurement.write_text('{"fingerprint": "torn off in the mid')
    frame = frame_of(folder)
    torn = row(frame, "torn")
    assert torn["outcome"] == "PENDING"
    assert "was corrupt" in torn["cause"]
    assert torn["quarantined"].startswith("measurement.corrupt-")
    assert not files.measurement.exists()
    sweep = Sweep.stored_in(folder)
    trials = sweep.read()
    assert not any("quarantined" in row for row in whole_rows(report_document(sweep, trials, {})))
    (listed,) = (row["quarantined"] for row in whole_rows(status_document(sweep, trials, [], History(), {}))[2:3])
    assert [path.rsplit("/", 1)[-1] for path in listed] == [torn["quarantined"]]
    assert row(frame, "base")["outcome"] == "COMPLETED"
    assert row(frame_of(folder), "torn")["outcome"] == "PENDING", "reading again must not change the answer"


def test_a_later_attempt_of_a_quarantined_trial_is_running(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS).folder
    files = folder.trial("torn")
    files.path.mkdir(parents=True)
    files.measurement.write_text("no JSON")
    frame_of(folder)
    write_steps(folder, "torn", [1])
    later = files.damaged_files()[0].stat().st_ctime + 5
    os.utime(files.heartbeat, (later, later))
    assert row(frame_of(folder), "torn")["outcome"] == "RUNNING"


def test_a_point_that_cannot_exist_shows_the_sizes_it_asked_for(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS).folder
    impossible = row(frame_of(folder), "impossible")
    assert (impossible["world_size"], impossible["tensor_parallel_size"]) == (3, 2)
    assert "multiple of 2" in impossible["cause"]


def test_a_trial_that_the_sweep_leaves_out_has_no_outcome(write_sweep: WriteSweep) -> None:
    folder, record, _ = write_sweep([TRIALS[0], TRIALS[1].model_copy(update={"selected": False})])
    assert [result.outcome for result in Sweep(folder, record).read()] == [Outcome.PENDING, None]


def test_a_diverged_loss_survives_the_disk(write_sweep: WriteSweep) -> None:
    losses = (5.0, float("nan"), float("inf"))
    folder = write_sweep(TRIALS, {"base": performance(100.0, losses=losses, final_loss=float("nan"))}).folder
    base = row(frame_of(folder), "base")
    assert base["outcome"] == "COMPLETED"
    assert math.isnan(base["measured_final_loss"])


def test_the_columns_do_not_depend_on_how_far_the_sweep_has_come(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS).folder
    before = list(frame_of(folder).columns)
    finish(folder, TRIALS[0], performance(100.0))
    assert list(frame_of(folder).columns) == before


def test_a_torn_record_of_the_trial_itself_does_not_matter(write_sweep: WriteSweep) -> None:
    folder = write_sweep(TRIALS, {"base": performance(100.0)}).folder
    folder.trial("base").trial.write_text(json.dumps({})[:1])
    assert row(frame_of(folder), "base")["outcome"] == "COMPLETED"


def test_a_reading_of_a_measured_trial_keeps_none_of_its_steps(write_sweep: WriteSweep) -> None:
    """Ten thousand trials of thousands of steps would not fit into memory."""
    folder, record, _ = write_sweep((TRIALS[0],), {"base": performance(100.0)})
    readings = Sweep(folder, record).read()
    assert readings[0].steps[-1].step == collect(record, readings)["num_steps_done"][0] > 1
    kept = [value for value in vars(readings[0]).values() if isinstance(value, tuple | bytes)]
    assert not any(isinstance(each, StepMetrics) for values in kept for each in values)
    assert readings[0].step_lines not in kept


def test_a_value_that_all_rows_have_alike_stands_once_and_no_other_does(write_sweep: WriteSweep) -> None:
    sweep = write_sweep(TRIALS, {"base": performance(100.0), "two": performance(150.0)})
    document = report_document(sweep, sweep.read(), {})
    common, parts = document["common"], document["trials"]
    assert [part["trial_id"] for part in parts] == [member.trial_id for member in TRIALS]
    assert (common["role"], common["disturbed"]) == ("asked", None)
    for part in parts:
        assert not part.keys() & common.keys()
        assert part.keys() == parts[0].keys(), "a value that one row has of its own, each has"
    for name in parts[0]:
        assert len({repr(part[name]) for part in parts}) > 1, name
    alone = report_document(sweep, sweep.read()[:1], {})
    assert [row["measured_tokens_per_second"] for row in whole_rows(alone)] == [100.0]
    assert alone["trials"] == [{"trial_id": "base"}]
