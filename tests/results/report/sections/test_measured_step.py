"""A recorded step beside what was predicted of it. Every recorded number is MADE UP for the test."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from conf.plan.setup_parts import StageBlock
from costs import estimate
from costs.trainers import TRISWEEP
from results.report.pipeline_spans import predicted_step
from results.report.report import csv_text
from results.report.sections.step_over_time import section
from sweeps.sweep import Sweep
from sweeps.trial import Trial
from tests.results.conftest import FULL, WriteSweep, cluster, experiment, performance, trial
from tests.results.report.recorded import cut, leave, made_up_stages
from tests.results.report.sections.conftest import drawn, plots_of, rows_of, shown_of, subject_of, text_of
from tests.results.report.sections.test_step_over_time import assert_shows_passes_of_every_stage

ALONE = trial("alone", is_baseline=True)
PIPED = trial("piped", world_size=2, pipeline_parallel_size=2)
SLOW = trial("slow", world_size=4, pipeline_parallel_size=4)
RATES = {"alone": performance(100.0), "piped": performance(120.0, 2), "slow": performance(90.0, 4)}


@pytest.fixture
def sweep(write_sweep: WriteSweep) -> Sweep:
    return write_sweep((ALONE, PIPED, SLOW), RATES, mode="cluster")


def test_the_fastest_trial_with_a_pipeline_is_shown_and_named_with_both_bubbles(sweep: Sweep) -> None:
    for trial_id, num_stages in (("alone", 1), ("piped", 2), ("slow", 4)):
        leave(sweep, trial_id, made_up_stages(num_stages, 8))
    found = shown_of(section, sweep)
    assert found.numbers_are == "measured and predicted"
    assert "`tp1-pp2-dp1-mb1-gb8`, the fastest trial with a pipeline, was measured to take 27.5 s" in found.finding
    assert "with a bubble of 10.9 %, and predicted to take" in found.finding
    assert "These ranks ran on one machine and have one clock" in text_of(found)
    rows = rows_of(found, "timeline-shares")
    assert [(row["stage"], row["numbers are"]) for row in rows] == [
        (stage, what) for stage in ("0", "1", "all") for what in ("predicted", "measured")
    ]
    assert [row["bubble %"] for row in rows if row["numbers are"] == "measured"] == ["10.9"] * 3
    for row in rows:
        assert sum(float(row[f"{kind} %"]) for kind in ("busy", "communication", "bubble")) == pytest.approx(
            100, abs=0.2
        )


def test_the_csv_has_a_row_for_each_stage_and_kind_of_number(sweep: Sweep) -> None:
    leave(sweep, "piped", made_up_stages(2, 8))
    subject = subject_of(sweep)
    text = csv_text(subject, subject.results)
    rows = [row for row in csv.DictReader(text.splitlines()) if row["part"] == "stage"]
    assert [(row["stage_number"], row["stage_numbers_are"]) for row in rows] == [
        (stage, what) for stage in ("0", "1") for what in ("predicted", "measured")
    ]
    assert {row["stage_of_trial"] for row in rows} == {"piped"}
    assert float(rows[1]["stage_bubble_share"]) == pytest.approx(3 / 27.5)


def test_both_share_one_picture_with_one_axis_and_one_set_of_colours(sweep: Sweep) -> None:
    leave(sweep, "piped", made_up_stages(2, 8))
    picture = plots_of(shown_of(section, sweep))[-1]
    svg = drawn(picture)
    assert all(f"stage {stage}, {what}<" in svg for stage in range(2) for what in ("predicted", "measured"))
    domain = picture.spec["encoding"]["x"]["scale"]["domain"]
    assert domain == [0.0, 27.5]


def test_the_best_plan_is_drawn_once_where_it_is_the_one_that_was_recorded(write_sweep: WriteSweep) -> None:
    sweep = write_sweep((PIPED,), {"piped": RATES["piped"]}, mode="cluster")
    leave(sweep, "piped", made_up_stages(2, 8))
    found = shown_of(section, sweep)
    assert [plot.name for plot in plots_of(found)] == ["timeline-measured"]
    assert "the fastest trial, was measured" in found.finding
    assert rows_of(found, "timeline-stages")


def test_without_a_pipeline_the_single_stage_is_shown_and_said_to_be_one(sweep: Sweep) -> None:
    leave(sweep, "alone", made_up_stages(1, 8))
    found = shown_of(section, sweep)
    assert "no trial with a pipeline recorded its passes" in found.finding
    assert "stage 0, measured<" in drawn(plots_of(found)[-1])


def test_folders_without_a_record_show_what_is_predicted(sweep: Sweep) -> None:
    assert shown_of(section, sweep).numbers_are == "predicted"


def test_a_long_step_is_shown_where_it_fills_and_drains_with_little_data(write_sweep: WriteSweep) -> None:
    long = trial("long", world_size=2, pipeline_parallel_size=2, global_batch_size=1200)
    sweep = write_sweep((long,), {"long": performance(1.0, 2)}, mode="cluster")
    leave(sweep, "long", [cut(stage, 2000) for stage in made_up_stages(2, 1200)])
    found = shown_of(section, sweep)
    fill, drain = plots_of(found)
    assert "Of the 2400 passes of a stage the first and the last 1000 are listed" in text_of(found)
    assert sum(len(json.dumps(plot.spec)) for plot in (fill, drain)) < 500_000
    assert "stage 1, measured<" in drawn(drain)
    assert_shows_passes_of_every_stage(fill)
    assert_shows_passes_of_every_stage(drain)


def test_ranks_that_shared_cores_are_cautioned_about(write_sweep: WriteSweep) -> None:
    sweep = write_sweep((PIPED,), {"piped": performance(120.0, 1)}, mode="cluster")
    leave(sweep, "piped", made_up_stages(2, 8))
    assert "2 ranks took turns on 1 core when this was measured" in text_of(shown_of(section, sweep))


def test_clocks_of_several_machines_are_said_to_be_aligned(sweep: Sweep) -> None:
    leave(sweep, "piped", made_up_stages(2, 8, machines=("a", "b")))
    assert "leaves neighbours uncertain by" in text_of(shown_of(section, sweep))


def mixed(**point: Any) -> Trial:
    """Two stages on the first half of the devices, two on slower ones."""
    fast, slow = cluster("fast-cluster"), cluster("slow-cluster")
    peaks = {dtype: peak / 2 for dtype, peak in slow.device.peak_flops_per_second.items()}
    slow = slow.model_copy(update={"device": slow.device.model_copy(update={"peak_flops_per_second": peaks})})
    value = experiment(model=FULL, world_size=64, tensor_parallel_size=8, pipeline_parallel_size=4, **point)
    blocks = tuple(StageBlock(cluster=each, num_devices=32) for each in (fast, slow))
    value = value.model_copy(update={"mixed": blocks})
    predicted = estimate(value).model_copy(update={"shortfall_bytes": 0})
    return PIPED.model_copy(update={"experiment": value, "estimate": predicted, "infeasible_reason": None})


def test_a_job_over_two_types_of_devices_has_a_timeline_that_names_them(write_sweep: WriteSweep) -> None:
    found = shown_of(section, write_sweep((), plan=(mixed(),)))
    rows = rows_of(found, "timeline-stages")
    assert [row["devices"] for row in rows] == ["fast-cluster"] * 2 + ["slow-cluster"] * 2
    assert float(rows[1]["forward s"]) < 0.7 * float(rows[2]["forward s"])
    assert "stage 2, slow-cluster<" in drawn(plots_of(found)[0])


@pytest.mark.parametrize("num_micro_batches", [4, 32])
def test_the_passes_of_a_mixed_job_take_about_as_long_as_its_closed_formula_says(num_micro_batches: int) -> None:
    plan = mixed(global_batch_size=2 * num_micro_batches)
    assert plan.experiment is not None
    laid_out = predicted_step(plan.experiment, TRISWEEP).total_seconds
    assert laid_out == pytest.approx(estimate(plan.experiment).step_seconds, rel=0.02)
