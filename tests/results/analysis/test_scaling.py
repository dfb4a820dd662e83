"""Scaling efficiency on numbers small enough to check by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from results.analysis.findings.ranking import relations_of_points
from results.analysis.scaling import Scaling, scalings
from sweeps.ranking.points import measured_points
from sweeps.reading import TrialReading
from sweeps.trial import Trial
from tests.results.conftest import ENVIRONMENT, FULL, cluster, performance, trial
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Environment, Measurement, Outcome, Performance


@dataclass(frozen=True, kw_only=True)
class Measured(TrialReading):
    """A reading without a disk."""

    measurement: Measurement | None


def result(of: Trial, measured: Performance | None, environment: Environment = ENVIRONMENT) -> TrialReading:
    measurement = None
    if measured and of.experiment:
        measurement = Measurement(
            fingerprint=of.experiment.fingerprint,
            outcome=Outcome.COMPLETED,
            cause="",
            failing_rank=None,
            traceback=None,
            performance=measured,
            environment=environment,
            started=0.0,
            ended=1.0,
        )
    return Measured(folder=TrialFolder(of.trial_id), experiment=of.experiment, trial=of, measurement=measurement)


def against_baseline(other: TrialReading, baseline_tokens_per_second: float | None = 100.0) -> Scaling:
    """The baseline is one device, a global batch of 8."""
    measured = performance(baseline_tokens_per_second) if baseline_tokens_per_second else None
    return scalings([result(trial("base", is_baseline=True), measured), other])[1]


def measured_trial(tokens_per_second: float, num_devices: int, **point: Any) -> TrialReading:
    return result(trial("other", world_size=num_devices, **point), performance(tokens_per_second, num_devices))


def test_the_baseline_is_one_by_definition() -> None:
    first = scalings([result(trial("base", is_baseline=True), performance(100.0))])[0]
    assert (first.kind, first.efficiency, first.speed_up) == ("baseline", 1.0, 1.0)


def test_points_are_compared_by_the_figures_that_are_shown_of_them() -> None:
    """Of two runs that is their mean, and not one run's own figure against the mean of the baseline's."""
    speeds = {"base": (100.0, 64.0), "other": (160.0, 90.0)}
    readings = [
        result(trial(f"{name}-{run}", is_baseline=name == "base", micro_batch_size=size), performance(speed))
        for size, (name, both) in enumerate(speeds.items(), start=1)
        for run, speed in enumerate(both)
    ]
    points = measured_points(readings)
    relations = relations_of_points(points, readings)
    shown = {point.is_baseline: point.performance.tokens_per_second for point in points}
    assert shown == pytest.approx({True: 80.0, False: 120.0})
    (other,) = (relations[point.middle.trial.trial_id] for point in points if not point.is_baseline)
    assert other.speed_up == pytest.approx(1.5)


def test_equal_global_batch_on_four_devices_is_strong_scaling() -> None:
    """100 tokens/s on 1 device, 300 on 4: 3 times as fast, 75 % per device."""
    strong = against_baseline(measured_trial(300.0, 4))
    assert strong.kind == "strong"
    assert strong.speed_up == pytest.approx(3.0)
    assert strong.efficiency == pytest.approx(0.75)
    assert strong.note == "global batch of 8 held constant, 1 device to 4"


def test_equal_batch_per_device_is_weak_scaling() -> None:
    """100 tokens/s on 1 device, 360 on 4 with 4 times the batch: 90 % per device."""
    weak = against_baseline(measured_trial(360.0, 4, global_batch_size=32))
    assert weak.kind == "weak"
    assert weak.speed_up == pytest.approx(3.6)
    assert weak.efficiency == pytest.approx(0.9)
    assert weak.note == "batch of 8 per device held constant, 1 device to 4"


def test_equally_many_devices_are_two_layouts_and_no_scaling() -> None:
    layout = against_baseline(result(trial("other", micro_batch_size=2), performance(120.0)))
    assert (layout.kind, layout.efficiency) == ("layout", None)
    assert layout.speed_up == pytest.approx(1.2)


def test_ranks_that_share_the_devices_of_the_baseline_are_no_scaling_either() -> None:
    """Four ranks on one core are still one device."""
    shared = against_baseline(result(trial("other", world_size=4), performance(90.0, num_devices=1)))
    assert (shared.kind, shared.efficiency) == ("layout", None)


def test_a_batch_that_grows_otherwise_is_not_comparable() -> None:
    other = against_baseline(measured_trial(300.0, 4, global_batch_size=16))
    assert (other.kind, other.efficiency, other.speed_up) == (None, None, None)
    assert "neither the global batch (8 to 16)" in other.note


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": FULL}, "model"),
        ({"cluster": cluster("another-cluster")}, "cluster"),
    ],
)
def test_another_model_or_cluster_gives_no_number(change: dict[str, Any], named: str) -> None:
    other = against_baseline(measured_trial(300.0, 4, **change))
    assert (other.kind, other.efficiency, other.speed_up) == (None, None, None)
    assert named in other.note


@pytest.mark.parametrize(("change", "named"), [({"recompute": "full"}, "recompute"), ({"dtype": "bf16"}, "precision")])
def test_tokens_of_another_precision_or_recomputation_compare_and_are_no_scaling(
    change: dict[str, Any], named: str
) -> None:
    """A sweep that asks for one of these has its answer in this number."""
    other = against_baseline(measured_trial(300.0, 4, **change))
    assert (other.kind, other.efficiency, other.speed_up) == (None, None, 3.0)
    assert named in other.note


def test_a_cluster_whose_file_was_corrected_since_is_still_the_same() -> None:
    before = cluster()
    calibrated = before.model_copy(update={"efficiency": before.efficiency.model_copy(update={"matmul": 0.7})})
    assert against_baseline(measured_trial(300.0, 4, cluster=calibrated)).kind == "strong"


def test_another_device_gives_no_number() -> None:
    elsewhere = ENVIRONMENT.model_copy(update={"device": "another device"})
    other = against_baseline(result(trial("other", world_size=4), performance(300.0, 4), elsewhere))
    assert (other.efficiency, other.note) == (None, "device not as in the baseline")


def test_without_a_measured_baseline_nothing_is_comparable() -> None:
    unmeasured = against_baseline(measured_trial(300.0, 4), baseline_tokens_per_second=None)
    assert (unmeasured.efficiency, unmeasured.note) == (None, "the baseline has not been measured")
    assert scalings([measured_trial(300.0, 4)])[0].note == "the sweep declares no baseline that can exist"
