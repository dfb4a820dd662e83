"""The table of a sweep, whatever state its folders are in."""

from __future__ import annotations

import json
import math
import os

import pandas
import pytest

from results.trial_rows import collect
from sweeps.sweep import Sweep
from tests.results.conftest import WriteSweep, experiment, finish, performance, trial, write_steps
from train_core.measurement import Outcome, RankFailure

TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("torn", world_size=2),
    trial("waiting", world_size=2, pipeline_parallel_size=2),
    trial("impossible", world_size=3, tensor_parallel_size=2),
)


def row(frame: pandas.DataFrame, trial_id: str) -> pandas.Series:
    found = frame.set_index("trial_id").loc[trial_id]
    assert isinstance(found, pandas.Series), "several rows of one trial"
    return found


def test_every_trial_is_a_row_in_the_order_of_the_record(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS, {"base": performance(100.0)})
    frame = collect(Sweep.stored_in(folder).read())
    assert list(frame["trial_id"]) == [member.trial_id for member in TRIALS]
    assert list(frame["outcome"]) == ["COMPLETED", "PENDING", "PENDING", "PENDING", "INFEASIBLE"]


def test_predicted_and_measured_have_columns_of_their_own_with_the_same_field_names(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS, {"base": performance(100.0)})
    base = row(collect(Sweep.stored_in(folder).read()), "base")
    assert base["measured_tokens_per_second"] == 100.0
    assert base["predicted_step_seconds"] == pytest.approx(1.11)
    assert base["predicted_low_step_seconds"] < 1.11 < base["predicted_high_step_seconds"]
    assert base["measured_step_seconds"] == pytest.approx(2.56)
    assert base["scaling_efficiency"] == 1.0


def test_what_only_a_later_point_sets_has_a_column_too(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS)
    frame = collect(Sweep.stored_in(folder).read())
    assert row(frame, "waiting")["point.pipeline_parallel_size"] == 2
    assert math.isnan(row(frame, "base")["point.pipeline_parallel_size"])


def test_an_unmeasured_trial_has_a_prediction_and_no_measurement(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS)
    waiting = row(collect(Sweep.stored_in(folder).read()), "waiting")
    measured = [name for name in waiting.index if name.startswith("measured_")]
    assert waiting[measured].isna().all()
    assert waiting["predicted_step_seconds"] > 0


def test_a_trial_with_steps_and_no_end_is_running_and_shows_its_last_step(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS)
    write_steps(folder, "two", [1, 2, 3])
    two = row(collect(Sweep.stored_in(folder).read()), "two")
    assert (two["outcome"], two["num_steps_done"], two["num_steps"]) == ("RUNNING", 3, 6)
    assert two["live_loss"] == pytest.approx(5.0 - math.log1p(2))
    assert pandas.isna(two["measured_step_seconds"])


def test_a_corrupt_measurement_is_set_aside_and_reported_and_the_rest_is_unharmed(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS, {"base": performance(100.0), "torn": performance(150.0)})
    files = folder.trial("torn")
    files.measurement.write_text('{"fingerprint": "torn off in the mid')
    frame = collect(Sweep.stored_in(folder).read())
    torn = row(frame, "torn")
    assert torn["outcome"] == "PENDING"
    assert "was corrupt" in torn["cause"]
    assert torn["quarantined"].startswith("measurement.corrupt-")
    assert not files.measurement.exists()
    assert row(frame, "base")["outcome"] == "COMPLETED"
    assert row(collect(Sweep.stored_in(folder).read()), "torn")["outcome"] == "PENDING", (
        "reading again must not change the answer"
    )


def test_a_later_attempt_of_a_quarantined_trial_is_running(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS)
    files = folder.trial("torn")
    files.path.mkdir(parents=True)
    files.measurement.write_text("no JSON")
    collect(Sweep.stored_in(folder).read())
    write_steps(folder, "torn", [1])
    later = files.damaged_files()[0].stat().st_ctime + 5
    os.utime(files.heartbeat, (later, later))
    assert row(collect(Sweep.stored_in(folder).read()), "torn")["outcome"] == "RUNNING"


def test_a_measurement_of_another_experiment_is_not_taken_for_this_one(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS)
    finish(folder, TRIALS[1], performance(500.0), fingerprint=experiment(global_batch_size=16).fingerprint)
    two = row(collect(Sweep.stored_in(folder).read()), "two")
    assert pandas.isna(two["measured_tokens_per_second"])
    assert "belongs to another experiment" in two["cause"]


def test_a_rank_that_left_its_failure_speaks_for_the_trial_until_the_measurement_is_written(
    write_sweep: WriteSweep,
) -> None:
    folder, _ = write_sweep(TRIALS)
    failure = RankFailure(rank=1, outcome=Outcome.OUT_OF_MEMORY, cause="2 GiB too many", traceback="...", time=5.0)
    folder.trial("two").write_failure(failure)
    two = row(collect(Sweep.stored_in(folder).read()), "two")
    assert (two["outcome"], two["cause"]) == ("OUT_OF_MEMORY", "2 GiB too many")


def test_a_point_that_cannot_exist_shows_the_sizes_it_asked_for(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS)
    impossible = row(collect(Sweep.stored_in(folder).read()), "impossible")
    assert (impossible["world_size"], impossible["tensor_parallel_size"]) == (3, 2)
    assert "multiple of 2" in impossible["cause"]


def test_a_trial_that_the_sweep_leaves_out_has_no_outcome(write_sweep: WriteSweep) -> None:
    folder, record = write_sweep([TRIALS[0], TRIALS[1].model_copy(update={"selected": False})])
    assert [result.outcome for result in Sweep(folder, record).read()] == [Outcome.PENDING, None]


def test_a_diverged_loss_survives_the_disk(write_sweep: WriteSweep) -> None:
    losses = (5.0, float("nan"), float("inf"))
    folder, _ = write_sweep(TRIALS, {"base": performance(100.0, losses=losses, final_loss=float("nan"))})
    base = row(collect(Sweep.stored_in(folder).read()), "base")
    assert base["outcome"] == "COMPLETED"
    assert math.isnan(base["measured_final_loss"])


def test_the_columns_do_not_depend_on_how_far_the_sweep_has_come(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS)
    before = list(collect(Sweep.stored_in(folder).read()).columns)
    finish(folder, TRIALS[0], performance(100.0))
    assert list(collect(Sweep.stored_in(folder).read()).columns) == before


def test_a_torn_record_of_the_trial_itself_does_not_matter(write_sweep: WriteSweep) -> None:
    folder, _ = write_sweep(TRIALS, {"base": performance(100.0)})
    folder.trial("base").trial.write_text(json.dumps({})[:1])
    assert row(collect(Sweep.stored_in(folder).read()), "base")["outcome"] == "COMPLETED"
