"""Scaling studies on numbers small enough to check by hand."""

from __future__ import annotations

from math import exp

import pytest

from results.analysis.findings.verdict import study_sentence, verdict
from results.analysis.scaling import amdahl, gustafson, measured_study, predicted_study
from results.render.section import NamedTable
from results.report.sections.scaling import section
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord
from tests.results.conftest import WriteSweep, performance, trial
from tests.results.report.sections.conftest import plots_of, shown_of, subject_of, text_of
from train_core.trial.measurement import Performance

TRIALS = [
    trial("one", is_baseline=True),
    trial("two", world_size=2, global_batch_size=16),
    trial("four", world_size=4, global_batch_size=32),
]
MEASURED = {"one": performance(100.0), "two": performance(180.0, 2), "four": performance(170.0, 2)}


def sweep_of(write_sweep: WriteSweep, how: dict[str, Performance] | None = None) -> Sweep:
    folder = write_sweep(TRIALS, MEASURED if how is None else how, published=("frontier-175b-weak",)).folder
    record = folder.read_record()
    return Sweep(folder, record.model_copy(update={"spec": record.spec.model_copy(update={"scaling": "weak"})}))


def test_amdahl_finds_the_share_that_made_the_times() -> None:
    """A tenth of the step is serial: on 4 devices it takes 0.1 + 0.9 / 4 = 0.325 of its time."""
    fit = amdahl([(1.0, 1.0), (2.0, 1 / (2 * 0.55)), (4.0, 1 / (4 * 0.325))])
    assert fit is not None
    assert fit.num_points == 2
    assert fit.serial_share == pytest.approx(0.1)
    assert fit.efficiency(4.0) == pytest.approx(1 / (4 * 0.325))


def test_gustafson_finds_the_share_that_made_the_throughput() -> None:
    """With a tenth serial, 4 devices do 0.1 + 0.9 * 4 = 3.7 times the work."""
    fit = gustafson([(1.0, 1.0), (4.0, 3.7 / 4)])
    assert fit is not None
    assert fit.serial_share == pytest.approx(0.1)
    assert fit.efficiency(4.0) == pytest.approx(3.7 / 4)
    assert gustafson([(1.0, 1.0)]) is None


def test_efficiency_has_an_interval_of_both_rates_and_ranks_that_share_devices_are_labelled(
    write_sweep: WriteSweep,
) -> None:
    """Each single run spreads by 5 % either way, so that the ratio spreads by sqrt(2) times as much."""
    sweep = sweep_of(write_sweep)
    study = measured_study(sweep.record, sweep.read())
    assert study is not None
    one, two, four = study.points
    assert (one.efficiency, one.efficiency_low, one.efficiency_high) == (1.0, 1.0, 1.0)
    assert two.efficiency == pytest.approx(0.9)
    assert two.speed_up == pytest.approx(1.8)
    half = 2**0.5 * 0.0500417  # log(1.05 / 0.95) / 2
    assert two.efficiency_high == pytest.approx(0.9 * exp(half), rel=1e-4)
    assert (four.shares_devices, four.num_devices, four.num_ranks) == (True, 2, 4)
    assert study.fit is not None
    assert study.fit.serial_share == pytest.approx(0.2)
    assert study.last is two


def test_the_section_keeps_measured_predicted_and_published_apart(write_sweep: WriteSweep) -> None:
    sweep = sweep_of(write_sweep)
    found = shown_of(section, sweep)
    assert found.finding.startswith("2 devices keep 90.0 % of the baseline's rate per device (95 % interval")
    assert "4 ranks shared 2 devices" in found.finding
    tables = {block.name: block.table for block in found.blocks if isinstance(block, NamedTable)}
    assert set(tables) == {"scaling-measured", "scaling-predicted-for-the-same-trials"}
    # Four ranks had two devices, and on paper they have four: that is another question.
    assert [len(table.rows) for table in tables.values()] == [3, 2]
    texts = text_of(found).splitlines()
    assert any(text.startswith("Published: Dash et al. 2023") and "100 % weak" in text for text in texts)
    (plot,) = plots_of(found)
    series = {value["series"] for value in plot.spec["data"]["values"]}
    assert series == {"measured", "predicted for the same trials", "published"}


def test_the_verdict_on_a_study_is_its_efficiency(write_sweep: WriteSweep) -> None:
    sweep = sweep_of(write_sweep)
    readings = sweep.read()
    said = verdict(sweep.record, readings)
    assert said.headline.startswith("Weak scaling: 2 devices keep 90.0 % of the baseline's rate per device, between")


def test_ranks_that_all_shared_the_baselines_device_are_not_passed_over(write_sweep: WriteSweep) -> None:
    sweep = sweep_of(write_sweep, {name: performance(100.0, 1) for name in ("one", "two", "four")})
    study = measured_study(sweep.record, sweep.read())
    assert study is not None
    assert study_sentence(study, None) == (
        "Weak scaling: nothing was measured on more devices than the baseline's (2 and 4 ranks shared 1 device)."
    )


def test_a_study_without_its_baseline_or_of_another_sweep_is_none(write_sweep: WriteSweep) -> None:
    sweep = sweep_of(write_sweep, {"two": performance(180.0, 2)})
    assert measured_study(sweep.record, sweep.read()) is None
    found = shown_of(section, sweep)
    assert found.finding.startswith("Nothing was measured yet; on paper 4 devices keep")
    other = _without_scaling(sweep.record)
    assert section(subject_of(Sweep(sweep.folder, other))) is None
    assert predicted_study(other, other.trials) is None


def _without_scaling(record: SweepRecord) -> SweepRecord:
    return record.model_copy(update={"spec": record.spec.model_copy(update={"scaling": None})})
