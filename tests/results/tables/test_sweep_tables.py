"""Tables in terminals of several widths."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from cli.output.state_table import state_table
from cli.output.status_table import status_table
from conf.types.sweep_spec import Objective
from results.analysis.findings.ranking import by_prediction
from results.analysis.knobs.table import measured_table
from results.render.table import Table
from results.tables.sweep_tables import plan_table, ranking_table
from results.tables.trial_rows import repeat_columns
from sweeps.ranking.disturbed import TWO_SPEEDS
from sweeps.sweep import Sweep
from tests.results.conftest import WriteSweep, performance, trial
from tests.results.report.test_report import HOW, PLAN, PROXY_TRIALS
from tests.sweeps.ranking.test_disturbed_runs import QUIET, stepped


def shown(table: RenderableType, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def table_of(sweep: Sweep) -> Table:
    return ranking_table(sweep.record, sweep.read())


@pytest.mark.parametrize("width", [80, 100, 140])
def test_both_tables_fit_and_lose_no_number(write_sweep: WriteSweep, width: int) -> None:
    folder = write_sweep(PROXY_TRIALS, HOW).folder
    for table, numbers in (
        (table_of(Sweep.stored_in(folder)), ("0.100", "0.0950", "2.56", "1.50")),
        (plan_table(write_sweep([], plan=PLAN).record, PLAN), ("lacks 128.0", "1.56", "192.0")),
    ):
        text = shown(table, width)
        assert max(len(line) for line in text.splitlines()) <= width
        flat = " ".join(text.split())
        assert all(number in flat for number in numbers), text
        assert "…" not in text


def test_the_fastest_come_first_and_the_others_say_why_they_have_no_number(write_sweep: WriteSweep) -> None:
    folder = write_sweep(PROXY_TRIALS, HOW).folder
    lines = shown(table_of(Sweep.stored_in(folder)), 140).splitlines()
    ranked = [line.split() for line in lines if "COMPLETED" in line]
    assert [line[0] for line in ranked] == ["1=", "1=", "3", "4"]
    assert "*" in ranked[0]
    assert any("FAILED" in line for line in lines)
    assert any("INFEASIBLE" in line for line in lines)


def test_a_disturbed_point_has_no_place_and_a_share_above_its_peak_is_not_shown(write_sweep: WriteSweep) -> None:
    slow = stepped(8, [2.0, 4.6, 2.0, 4.5, 4.56, 2.04, 4.6])
    trials = [
        stepped(2, QUIET),
        stepped(4, QUIET, 0, model_flops_utilization=4.32, peak_source="data sheet"),
        slow,
    ]
    table = ranking_table(write_sweep([each.trial for each in trials]).record, trials)
    lines = shown(table, 140).splitlines()
    places = {line.split()[0] for line in lines if "COMPLETED" in line}
    (disturbed,) = [line for line in lines if line.lstrip().startswith("tp1") and "DISTURBED" in line]
    assert places == {"1="}
    assert "mb8" in disturbed
    assert TWO_SPEEDS in " ".join(shown(table, 140).split())
    assert "432" not in shown(table, 140)
    assert list(state_table([slow], 160).columns[1].cells) == [Text("DISTURBED", "yellow")]
    (*_, row) = repeat_columns(write_sweep([]).record, trials)
    assert (row["disturbed"], row["place"]) == (TWO_SPEEDS, None)
    assert [len(measured_table(trials).points), len(measured_table(trials[:2]).points)] == [2, 2]


def test_completed_trials_that_the_table_calls_disturbed_are_counted_so() -> None:
    trials = [stepped(2, QUIET), stepped(4, QUIET), stepped(8, [2.0, 4.6, 2.0, 4.5, 4.56, 2.04, 4.6])]
    assert "3 COMPLETED (1 of them disturbed)" in shown(status_table(trials, 100), 100)
    assert "2 COMPLETED\n" in shown(status_table(trials[:2], 100), 100)


@pytest.mark.parametrize(
    ("sought", "is_told"), [(["loss"], False), (["max:eval.score"], False), (["loss", "throughput"], True)]
)
def test_where_no_time_is_sought_no_trial_is_called_disturbed(sought: Sequence[Objective], is_told: bool) -> None:
    trials = [stepped(2, QUIET), stepped(4, QUIET), stepped(8, [2.0, 4.6, 2.0, 4.5, 4.56, 2.04, 4.6])]
    for table in (state_table(trials, 160, sought=sought), status_table(trials, 160, sought=sought)):
        assert ("DISTURBED" in shown(table, 160)) == is_told
    assert ("3 COMPLETED (1 of them disturbed)" in shown(table, 160)) == is_told


@pytest.mark.parametrize(("longest", "cell"), [(4.0, "150"), (400.0, ">1000")])
def test_a_share_beyond_all_use_is_not_spelt_out(write_sweep: WriteSweep, longest: float, cell: str) -> None:
    measured = {"base": performance(256.0, step_seconds_min=1.0, step_seconds_max=longest)}
    (row,) = table_of(Sweep.stored_in(write_sweep([trial("base")], measured).folder)).rows
    assert cell in [each.text for each in row]


def test_a_table_says_on_which_cluster_jobs_of_slurm_measured(write_sweep: WriteSweep) -> None:
    folder = write_sweep(PROXY_TRIALS, HOW).folder
    sweep = Sweep.stored_in(folder)
    results = [each for each in sweep.read() if each.is_in_slurm]
    title = ranking_table(sweep.record, results).title
    assert title.startswith(f"Measured on {results[0].planned.cluster.name}, ranked by ")


def test_a_table_of_a_sweep_of_which_nothing_has_begun_does_not_say_where_it_was_measured(
    write_sweep: WriteSweep,
) -> None:
    folder = write_sweep(PROXY_TRIALS, {}).folder
    assert table_of(Sweep.stored_in(folder)).title.startswith("Nothing measured, ranked by ")


def test_an_empty_sweep_is_an_empty_table(write_sweep: WriteSweep) -> None:
    folder, record, _ = write_sweep([])
    assert "Measured here" in shown(table_of(Sweep.stored_in(folder)), 80)
    assert "Predicted" in shown(plan_table(record, []), 80)


def test_what_a_plan_lacks_stands_on_one_line_in_a_usual_terminal(write_sweep: WriteSweep) -> None:
    lines = shown(plan_table(write_sweep([], plan=PLAN).record, PLAN), 100).splitlines()
    assert any("lacks 128.0" in line for line in lines)


def test_predictions_are_ranked_by_what_fits_then_by_what_lacks_least() -> None:
    order = [trial.trial_id for trial in by_prediction(PLAN)]
    assert order == ["plan-fast", "plan-recipe", "plan-lacks", "plan-impossible"]


def test_no_name_is_broken_within_a_word_in_a_narrow_terminal(write_sweep: WriteSweep) -> None:
    lines = shown(plan_table(write_sweep([], plan=PLAN).record, PLAN), 80).splitlines()
    words = {word.strip("-") for line in lines for word in line.split()}
    assert {"fits", "lacks", "GiB"} <= words
    assert any("tp2-pp16-dp2-mb1-gb8" in line for line in lines)
