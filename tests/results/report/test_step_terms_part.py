"""Where the step of measured trials goes, beside its prediction. Every measured number is MADE UP for the test."""

from __future__ import annotations

import csv

import pytest

from results.units import ABSENT, seconds
from tests.results.conftest import WriteSweep, performance, report_of, trial
from train_core.measurement import Breakdown, Performance, StepTerms

TRIALS = (trial("base", is_baseline=True), trial("two", world_size=2, pipeline_parallel_size=2))
TITLE = "### Where the step goes"


def terms(compute_seconds: float) -> StepTerms:
    return StepTerms(
        compute_seconds=compute_seconds,
        tensor_seconds=0.02,
        pipeline_wait_seconds=0.3,
        data_seconds=0.04,
        synchronization_seconds=0.05,
        optimizer_seconds=0.06,
    )


def with_breakdown(num_devices: int) -> Performance:
    """Of two ranks, of which the second is slower."""
    return performance(150.0, num_devices, breakdown=Breakdown(ranks=(terms(1.0), terms(1.25)), slowest_rank=1))


def rows_of(markdown: str) -> list[list[str]]:
    table = markdown[markdown.index(TITLE) :].split("\n\n")[2]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_slowest_ranks_terms_stand_below_the_predicted_ones_and_say_which_they_are(write_sweep: WriteSweep) -> None:
    how = {"base": performance(100.0), "two": with_breakdown(2)}
    predicted, measured = rows_of(report_of(write_sweep(TRIALS, how)).markdown.read_text())
    assert measured[1:3] == ["measured", "rank 1 of 2"]
    assert measured[3:] == ["1.25", "0.0200", "0.300", "0.0400", "0.0500", "0.0600", "1.72"]
    assert predicted[1:3] == ["predicted", "the slowest stage"]
    assert TRIALS[1].estimate is not None
    time = TRIALS[1].estimate.step_terms
    assert time.bubble_seconds > 0
    assert predicted[3] == seconds(time.compute_seconds)
    assert predicted[5] == seconds(time.pipeline_seconds + time.bubble_seconds)
    assert predicted[-1] == seconds(time.total_seconds)


def test_a_term_that_is_not_known_is_shown_as_that(write_sweep: WriteSweep) -> None:
    unknown = terms(1.0).model_copy(update={"data_seconds": None})
    how = {"two": performance(150.0, 1, breakdown=Breakdown(ranks=(unknown,), slowest_rank=0))}
    paths = report_of(write_sweep(TRIALS, how))
    (measured,) = rows_of(paths.markdown.read_text())
    assert measured[3:] == ["1.00", "0.0200", "0.300", ABSENT, "0.0500", "0.0600", "1.43"]
    with paths.csv.open(newline="") as file:
        *_, two = csv.DictReader(file)
    assert two["measured_data_seconds"] == ""


def test_ranks_that_shared_a_device_have_no_predicted_terms(write_sweep: WriteSweep) -> None:
    (measured,) = rows_of(report_of(write_sweep(TRIALS, {"two": with_breakdown(1)})).markdown.read_text())
    assert measured[1] == "measured"


@pytest.mark.parametrize("is_profiled", [True, False])
def test_both_forms_of_the_report_have_it_only_where_a_trial_was_profiled(
    write_sweep: WriteSweep, is_profiled: bool
) -> None:
    paths = report_of(write_sweep(TRIALS, {"two": with_breakdown(2) if is_profiled else performance(150.0, 2)}))
    assert (TITLE in paths.markdown.read_text()) == is_profiled
    assert ('id="table-step-terms"' in paths.html.read_text()) == is_profiled


def test_the_csv_has_the_slowest_ranks_terms_beside_the_predicted_ones(write_sweep: WriteSweep) -> None:
    paths = report_of(write_sweep(TRIALS, {"two": with_breakdown(2)}))
    with paths.csv.open(newline="") as file:
        base, two = csv.DictReader(file)
    assert float(two["measured_compute_seconds"]) == 1.25
    assert float(two["predicted_compute_seconds"]) > 0
    assert base["measured_compute_seconds"] == ""
    assert "measured_breakdown" not in two
