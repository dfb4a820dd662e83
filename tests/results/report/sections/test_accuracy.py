"""Predicted against measured. Every measured number is MADE UP for the test."""

from __future__ import annotations

import pytest

from results.render.section import Section
from results.render.units import ABSENT
from results.report.sections.accuracy import section
from tests.results.conftest import WriteSweep, performance, trial
from tests.results.report.sections.conftest import drawn, plots_of, rows_of, shown_of, subject_of, text_of
from train_core.trial.measurement import Breakdown, Performance, StepTerms

TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("wide", world_size=2),
    trial("piped", world_size=2, pipeline_parallel_size=2),
)


def taking(seconds: float, num_devices: int = 1, terms: StepTerms | None = None) -> Performance:
    """A step of so many seconds, at a rate that follows from them."""
    breakdown = Breakdown(ranks=(terms, terms), slowest_rank=1) if terms else None
    return performance(
        256 / seconds, num_devices, step_seconds=seconds, step_seconds_min=seconds, step_seconds_max=seconds
    ).model_copy(update={"breakdown": breakdown})


def terms(compute_seconds: float) -> StepTerms:
    return StepTerms(
        compute_seconds=compute_seconds,
        tensor_seconds=0.02,
        pipeline_wait_seconds=0.3,
        data_seconds=0.04,
        synchronization_seconds=0.05,
        optimizer_seconds=0.06,
    )


def predicted_seconds(number: int) -> float:
    estimate = TRIALS[number].estimate
    assert estimate is not None
    return estimate.step_seconds


@pytest.fixture
def found(write_sweep: WriteSweep) -> Section:
    """The baseline takes as long as predicted, the second twice as long, the third half as long."""
    how = {
        "base": taking(predicted_seconds(0)),
        "two": taking(2 * predicted_seconds(1), 2, terms(1.0)),
        "wide": taking(0.5 * predicted_seconds(2), 2),
    }
    return shown_of(section, write_sweep(TRIALS, how))


def test_the_finding_says_how_far_off_predictions_are_and_how_many_lie_inside(found: Section) -> None:
    """Errors are 0, -50 % and +100 %: the median of their sizes is 50 %, and one half and two cancel."""
    assert "off by 50.0 % in the median of 3 trials and by 100.0 % at worst, on average 0.0 %" in found.finding
    inside = sum(row["inside"] == "yes" for row in rows_of(found, "beside"))
    assert f"{inside} of 3 measured steps lie in the 80 % interval of their prediction" in found.finding


def test_every_trial_has_its_error_and_whether_its_interval_held(found: Section) -> None:
    rows = {row["layout"]: row for row in rows_of(found, "beside")}
    assert {row["error %"] for row in rows.values()} == {"0.0", "-50.0", "+100.0"}
    for row in rows.values():
        bounds = [*row["80 % interval s"].split(" to "), row["step s measured"]]
        low, high, measured = (float(seconds.replace(",", "")) for seconds in bounds)
        assert row["inside"] == ("yes" if low <= measured <= high else "no")


def test_terms_that_were_measured_have_statistics_of_their_own(found: Section) -> None:
    trials_of = {row["quantity"]: row["trials"] for row in rows_of(found, "prediction-errors")}
    assert trials_of["step"] == "3"
    assert trials_of["compute"] == "1"
    assert trials_of["memory of the fullest rank"] == "3"


def test_the_order_is_judged_and_what_following_the_prediction_costs_is_said(found: Section) -> None:
    said = text_of(found)
    assert "rankings of 3 trials by rate per device: Kendall's tau " in said
    assert "predicted to be the fastest per device" in said


def test_the_step_stands_term_by_term_beside_its_prediction(found: Section) -> None:
    predicted, measured = rows_of(found, "terms-beside")
    assert (predicted["seconds are"], measured["seconds are"]) == ("predicted", "measured")
    assert measured["compute s"] == "1.00"
    assert measured["sum s"] == "1.47"


def test_the_pictures_can_be_drawn(found: Section) -> None:
    scatter, bars = plots_of(found)
    assert "predicted model TFLOPS per device" in drawn(scatter)
    assert "ms per sequence" in drawn(bars)


def test_ranks_that_shared_a_device_are_held_against_nothing(write_sweep: WriteSweep) -> None:
    """Their measured terms and their memory are shown nevertheless."""
    shown = shown_of(section, write_sweep(TRIALS, {"two": taking(1.0, 1, terms(1.0))}))
    assert "no predicted time is compared with one" in shown.finding
    (row,) = rows_of(shown, "terms-beside")
    assert row["seconds are"] == "measured"
    (beside,) = rows_of(shown, "beside")
    assert beside["step s predicted"] == beside["error %"] == beside["inside"] == ABSENT
    assert beside["GiB error %"] != ABSENT
    assert [row["quantity"] for row in rows_of(shown, "prediction-errors")] == ["memory of the fullest rank"]


def test_one_trial_has_an_error_and_no_statistics_of_several(write_sweep: WriteSweep) -> None:
    shown = shown_of(section, write_sweep(TRIALS, {"base": taking(2 * predicted_seconds(0))}))
    assert "The one trial that can be compared" in shown.finding
    assert "-50.0 %" in shown.finding
    assert "Kendall" not in text_of(shown)


def test_a_term_that_is_not_known_is_shown_as_that(write_sweep: WriteSweep) -> None:
    unknown = terms(1.0).model_copy(update={"data_seconds": None})
    shown = shown_of(section, write_sweep(TRIALS, {"two": taking(2.0, 2, unknown)}))
    assert rows_of(shown, "terms-beside")[1]["data s"] == ABSENT
    assert "data parallel" not in {row["quantity"] for row in rows_of(shown, "prediction-errors")}


def test_without_measurements_there_is_no_section(write_sweep: WriteSweep) -> None:
    assert section(subject_of(write_sweep(TRIALS))) is None
