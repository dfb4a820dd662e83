"""What a report, a plan and a status say is no more than was measured, and no section contradicts another."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import vl_convert
from rich.console import Console

from cli.commands.sweep.sweep_run import cost_text
from cli.output.progress import PlainProgress, SweepUnderWay
from cli.output.state_table import duration, state_table
from conf.compose.load import compose
from conf.overrides import Overrides
from conf.types.schema import Value
from results.analysis.findings.ranking import relations_of_points
from results.analysis.findings.verdict import verdict
from results.render.page import markdown
from results.render.section import Plot, ReportSubject, head_of
from results.report.report import sections_of
from results.report.sections import answer
from results.report.sections.accuracy import section as accuracy
from results.report.sections.sought import section as sought
from results.tables.sweep_tables import plan_table
from sweeps.points.plan import plan_sweep
from sweeps.ranking.intervals import places_by_bounds
from sweeps.ranking.points import measured_points, places
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.results.conftest import WriteSweep, finish, performance, sweep_writer, trial
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Performance

MEASURED_PEAK = "measured"
OWN_PROGRAM = ["trainer=command", "trainer.command=[env, fit.py]", "training.num_steps=20"]
LR, BATCH = "training.learning_rate", "batch.global_batch_size"


@pytest.fixture
def write_sweep(tmp_path: Path) -> WriteSweep:
    return sweep_writer(tmp_path)


def taking(seconds: float, num_devices: int = 1, spread: float = 1.0, peak: float = 1e12) -> Performance:
    """A step of so many seconds, measured beside such a peak."""
    ends = {"step_seconds_min": seconds / spread, "step_seconds_max": seconds * spread}
    return performance(
        256 / seconds, num_devices, step_seconds=seconds, peak_source=MEASURED_PEAK, peak_flops_per_second=peak, **ends
    )


TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("wide", world_size=2),
    trial("again", world_size=2, recompute="full"),
)


@pytest.mark.parametrize(("loud", "says"), [(1.0, True), (17.0, False)])
def test_no_section_calls_a_trial_the_fastest_where_noise_hides_which_is(
    write_sweep: WriteSweep, loud: float, says: bool
) -> None:
    how = {"base": taking(2.0), "two": taking(1.0, 2, peak=1e12 * loud), "wide": taking(1.5, 2)}
    subject = ReportSubject.of(sweep := write_sweep(TRIALS, how), sweep.read())
    found = accuracy(subject)
    assert found is not None
    text = " ".join(str(block) for block in found.blocks)
    assert ("predicted to be the fastest per device" in text) is says
    assert not says or "of these 3 trials" in text


def test_the_knob_that_a_sweep_asks_about_is_compared_with_the_baseline(write_sweep: WriteSweep) -> None:
    sweep = write_sweep(TRIALS, {"base": taking(2.0), "again": taking(1.0, 2)})
    points = measured_points(readings := sweep.read())
    (again,) = (each for each in points if not each.is_baseline)
    relation = relations_of_points(points, readings)[again.middle.trial.trial_id]
    assert relation.kind is None
    assert relation.speed_up == pytest.approx(2.0)


def test_an_efficiency_is_shown_by_the_ends_of_its_interval(write_sweep: WriteSweep) -> None:
    """The steps of both vary by a factor of 2, so that their ratio does by one of 2 to the root of 2."""
    sweep = write_sweep(TRIALS[:3:2], {"base": taking(4.096, spread=2.0), "wide": taking(1.0, 2, spread=2.0)})
    points = measured_points(readings := sweep.read())
    relations = relations_of_points(points, readings).values()
    (bounds,) = (each.efficiency_bounds for each in relations if each.efficiency_bounds)
    low, high = bounds
    assert high / low == pytest.approx(2 ** (2 * math.sqrt(2)), rel=1e-3)
    said = " ".join(verdict(sweep.record, readings).paragraphs)
    assert "204.8 %" not in said
    assert re.search(rf"scaling: {100 * low:.1f} to {100 * high:.1f} %", said), said


def test_places_are_shared_with_the_first_and_counted_like_its_rivals() -> None:
    """The third may be as good as the first, and is surely worse than the second; the fourth is worse than all."""
    bounds = [(3.0, 9.0), (6.5, 7.0), (3.5, 6.0), (1.0, 2.9), None]
    assert places_by_bounds(bounds) == ["1=", "1=", "1=", "4", ""]
    assert places_by_bounds([(8.0, 9.0), (6.0, 6.5), (5.0, 8.5)]) == ["1=", "2=", "1="]
    assert places_by_bounds([]) == []


def test_as_many_may_be_as_fast_as_share_the_first_place(write_sweep: WriteSweep) -> None:
    how = {"base": taking(2.0, spread=1.5), "two": taking(1.1, 2, spread=1.01), "wide": taking(1.2, 2, spread=1.3)}
    sweep = write_sweep(TRIALS, how)
    shared = places(measured_points(readings := sweep.read())).count("1=")
    found = re.search(r"and (\d+) others? may be as fast", verdict(sweep.record, readings).headline)
    assert found
    assert int(found[1]) == shared - 1


@pytest.fixture
def own(tmp_path: Path, build_record: BuildRecord) -> Sweep:
    """A program of one's own that knows nothing of the model, and whose loss is sought over rates and batches."""
    points: list[dict[str, Value]] = [{LR: lr, BATCH: batch} for lr in (0.1, 0.2) for batch in (64, 256)]
    record = build_record(points, OWN_PROGRAM).model_copy(update={"objective": ("loss",)})
    record = record.model_copy(update={"plan": record.trials, "mode": "cluster"})
    folder = SweepFolder(tmp_path / "own-local")
    folder.write_record(record)
    for each, loss in zip(record.trials, (1.0, 2.0, 3.0, 4.0), strict=True):
        finish(folder, each, performance(100.0, losses=(9.0, loss), final_loss=loss))
    return Sweep.stored_in(folder)


SPEED = re.compile(r"TFLOPS|MFU|tokens/s|peak of", re.IGNORECASE)


def test_a_report_says_nothing_of_the_speed_of_a_program_that_knows_no_model(own: Sweep) -> None:
    sections = sections_of(ReportSubject.of(own, own.read()))
    text = markdown(head_of(own), sections, answer.layouts(own.record))
    assert not SPEED.findall(text)
    assert "How each trial ended" in text


def test_nor_do_a_plan_and_what_is_shown_while_it_runs(own: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    table = plan_table(own.record, own.record.plan)
    assert not {"TFLOPS", "MFU %", "GiB", "step s"} & set(table.columns)
    assert "lr=0.1" in table.rows[0][1].text
    shown = state_table(own.read(), 200, sought=("loss",))
    assert not {"TFLOPS", "predicted"} & {str(column.header) for column in shown.columns}
    progress = PlainProgress(Console(width=200), SweepUnderWay(("loss",)))
    ended = own.read()
    progress.show([replace(each, folder=TrialFolder(own.folder.path / "none")) for each in ended])  # before any began
    progress.show(ended)
    said = capsys.readouterr().out
    assert "loss 1" in said
    assert "TFLOPS" not in said


def test_its_points_are_taken_in_their_order_and_not_by_a_speed_that_is_not_theirs(
    build_record: BuildRecord,
) -> None:
    axes = "sweep.axes={batch.global_batch_size:[8,16,32,64]}"
    loss = ["search.objective=loss", "search.tokens=20480", "sweep.points=[]", axes, "sweep.max_trials=3"]
    asked = compose(Overrides.parse(["sweep=smoke", *OWN_PROGRAM[:2], *loss]))
    chosen = [each.point[BATCH] for each in plan_sweep(asked, proxy=False, git_sha="").trials if each.selected]
    assert chosen == [8, 16, 32], "the baseline, and the first two"


def test_an_axis_has_the_numbers_that_were_given(tmp_path: Path, build_record: BuildRecord) -> None:
    record = build_record([{LR: 64.0}, {LR: 128.0}, {LR: 256.0}], OWN_PROGRAM)
    folder = SweepFolder(tmp_path / "own-local")
    for each, loss in zip(record.trials, (1.0, 2.0, 3.0), strict=True):
        finish(folder, each, performance(100.0, losses=(9.0, loss), final_loss=loss))
    sweep = Sweep(folder, record.model_copy(update={"objective": ("loss",)}))
    found = sought(ReportSubject.of(sweep, sweep.read()))
    assert found is not None
    (plot,) = (block for block in found.blocks if isinstance(block, Plot) and block.name.startswith("over-"))
    svg = vl_convert.vegalite_to_svg({"width": 700} | plot.spec)
    assert "e+" not in svg
    assert ">256<" in svg


def test_small_amounts_are_said_in_units_that_people_use() -> None:
    assert [duration(seconds) for seconds in (0.0, 0.00015, 18.2)] == ["0s", "<1s", "18s"]
    assert [cost_text(value) for value in (None, 0.0, 4.24e-08, 0.5, 123.4)] == ["-", "0", "<0.001", "0.5", "123"]
