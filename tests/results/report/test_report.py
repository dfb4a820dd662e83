"""The three files of a report."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path
from typing import Any

import pandas
import pytest

from conf.errors import ConfigError
from conf.plan.experiment import Experiment
from results.analysis.findings.verdict import verdict
from results.mlflow.sweep_content import sweep_runs
from results.render.page import plot_library
from results.render.section import head_of
from results.render.table import Cell, Table
from results.report.report import ReportPaths
from sweeps.folder.journal import Begun, Cancelled, Finished, Journal
from sweeps.reading import CALLED_OFF, CANCELLED_BY_NAME
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.messages import refused
from tests.results.conftest import FULL, WriteSweep, performance, report_of, trial
from train_core.trial.measurement import Outcome

GOLDEN = Path(__file__).with_name("golden")
PROXY_TRIALS = (
    trial("base", is_baseline=True),
    trial("two", world_size=2, tensor_parallel_size=2),
    trial("weak", world_size=2, global_batch_size=16),
    trial("full", world_size=2, recompute="full"),
    trial("dead", world_size=2, tensor_parallel_size=2, sequence_parallel=True),
    trial("waiting", world_size=2, pipeline_parallel_size=2),
    trial("impossible", world_size=3, tensor_parallel_size=2),
)
HOW = {
    "base": performance(100.0),
    "two": performance(150.0, 2),
    "weak": performance(190.0, 2),
    "full": performance(120.0, 2),
    "dead": (Outcome.FAILED, "rank 1: ValueError: <script>alert('boo')</script> | no"),
}
PLAN = (
    trial("plan-recipe", True, model=FULL, world_size=64, tensor_parallel_size=4, pipeline_parallel_size=16),
    trial("plan-fast", model=FULL, world_size=64, tensor_parallel_size=2, pipeline_parallel_size=16),
    trial("plan-lacks", model=FULL, world_size=64, micro_batch_size=4, global_batch_size=256),
    trial("plan-impossible", model=FULL, world_size=64, tensor_parallel_size=5),
)
OF_THE_COST_MODEL = ("Predicted against measured", "Memory by pipeline stage", "Timeline of the pipeline")
"""Sections whose numbers follow the cost model; they have tests of their own, and golden files outlive its changes."""
LIMIT = "budget.device_hours = 1 leaves 0.2 device-hours, and the next trial could take 0.5"
PUBLISHED = ("frontier-175b", "frontier-175b-weak", "frontier-175b-recipe")


@pytest.fixture
def proxy_report(write_sweep: WriteSweep) -> ReportPaths:
    return report_of(write_sweep(PROXY_TRIALS, HOW, plan=PLAN, published=PUBLISHED))


@pytest.fixture
def cluster_report(write_sweep: WriteSweep) -> ReportPaths:
    """Full-size trials, the first of them measured twice as slow as predicted."""
    slow = performance(
        1.0, 64, step_seconds=3.12, step_seconds_min=3.0, step_seconds_max=3.2, peak_memory_bytes=(2**29,)
    )
    return report_of(write_sweep(PLAN, {"plan-recipe": slow}, plan=PLAN, mode="cluster"))


def test_the_markdown_of_a_proxy_sweep_is_the_golden_file(proxy_report: ReportPaths, tmp_path: Path) -> None:
    """Accept a change that is meant by copying the new file over the golden one."""
    text = without(proxy_report.markdown.read_text(), *OF_THE_COST_MODEL)
    (tmp_path / "report.md").write_text(text)
    assert text == (GOLDEN / "report.md").read_text(), f"see {tmp_path / 'report.md'}"


def without(markdown: str, *titles: str) -> str:
    """The report without some sections."""
    parts = re.split(r"^(?=## )", markdown, flags=re.MULTILINE)
    return "".join(part for part in parts if not part.startswith(tuple(f"## {title} (" for title in titles)))


def test_every_section_says_which_kind_of_number_it_holds(proxy_report: ReportPaths) -> None:
    text = proxy_report.markdown.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "The answer (measured and predicted)",
        "Predicted on paper (predicted)",
        "Memory by pipeline stage (predicted)",
        "Timeline of the pipeline (predicted)",
        "What a trillion tokens take (predicted)",
        "Every trial (measured)",
        "Predicted against measured (measured and predicted)",
        "Published by others (published)",
        "Provenance, and how to reproduce it",
    ]
    predicted = text[text.index("## Predicted on paper") : text.index("## Every trial")]
    assert "made-up-175b" in predicted
    assert "made-up-proxy" not in predicted


def test_the_full_size_comes_before_the_proxy(proxy_report: ReportPaths) -> None:
    text = proxy_report.markdown.read_text()
    predicted = text.index("listed points, made-up-175b trains fastest on 64 devices")
    assert predicted < text.index("### Measured here, with the proxy made-up-proxy")


def test_a_proxy_is_told_apart_from_the_full_size_where_its_numbers_stand(proxy_report: ReportPaths) -> None:
    text = proxy_report.markdown.read_text()
    trials = text[text.index("## Every trial") : text.index("Ranked by model TFLOPS")]
    assert "**Caution:** This is a small proxy" in trials


def test_full_size_trials_stand_beside_their_prediction_with_the_error(cluster_report: ReportPaths) -> None:
    """Predicted 1.56 s, measured 3.12 s: half, or -50 %."""
    text = cluster_report.markdown.read_text()
    beside = text[text.index("## Predicted against measured") :]
    row = next(line for line in beside.splitlines() if "(baseline)" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:4] == ["1.56", "3.12", "-50.0"]
    assert "proxy" not in text


def test_ranks_that_shared_devices_are_not_held_against_a_prediction_that_gives_each_its_own(
    write_sweep: WriteSweep,
) -> None:
    """64 ranks on 2 devices: the measured time stays, the predicted one and the error do not."""
    paths = report_of(write_sweep(PLAN, {"plan-recipe": performance(1.0, 2)}, plan=PLAN, mode="cluster"))
    text = paths.markdown.read_text()
    row = next(line for line in text[text.index("## Predicted against") :].splitlines() if "(baseline)" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][1:5] == ["-", "256", "-", "-"]


def test_every_number_of_devices_has_a_fastest_layout(proxy_report: ReportPaths) -> None:
    text = proxy_report.markdown.read_text()
    assert "on 1, tp1-pp1-dp1-mb1-gb8 (100 tokens/s); on 2, tp1-pp1-dp2-mb1-gb16 (190 tokens/s)" in text


@pytest.mark.parametrize(("second_peak", "is_noisy"), [(1.1e12, False), (1.5e12, True)])
def test_a_measured_peak_that_varies_is_a_warning_about_the_machine(
    write_sweep: WriteSweep, second_peak: float, is_noisy: bool
) -> None:
    how = {
        "base": performance(100.0, peak_source="measured"),
        "two": performance(150.0, 2, peak_source="measured", peak_flops_per_second=second_peak),
    }
    text = report_of(write_sweep(PROXY_TRIALS, how)).markdown.read_text()
    assert ("varied by a factor of 1.5: other work shared this machine" in text) == is_noisy


def test_the_shortfall_is_stated_in_gib(proxy_report: ReportPaths) -> None:
    """192 GiB needed of 64: 128 short."""
    row = next(line for line in proxy_report.markdown.read_text().splitlines() if "mb4-gb256" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == ["192.0", "64.0", "128.0"]


def test_unconfirmed_figures_say_so_in_both_forms(proxy_report: ReportPaths) -> None:
    assert ": unconfirmed." in proxy_report.markdown.read_text()
    assert ": unconfirmed." in page_without_library(proxy_report)


def test_what_a_trial_left_cannot_inject_anything_into_the_page(proxy_report: ReportPaths) -> None:
    page = page_without_library(proxy_report)
    assert "<script>alert" not in page
    assert html.escape("<script>alert('boo')</script>", quote=True).replace("&#x27;", "&#39;") in page
    markdown = proxy_report.markdown.read_text()
    assert "<script" not in markdown
    assert r"\| no" in markdown


def test_the_page_refers_to_nothing_outside_itself(proxy_report: ReportPaths) -> None:
    page = page_without_library(proxy_report)
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", page)
    assert "@import" not in page
    assert "url(" not in page


def test_the_csv_keeps_the_parts_in_columns_of_their_own(proxy_report: ReportPaths) -> None:
    with proxy_report.csv.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["part"] for row in rows] == ["trial"] * 7 + ["plan"] * 4 + ["published"] * 3
    for row in rows:
        filled = {name.split("_")[0] for name, value in row.items() if value}
        if row["part"] == "published":
            assert filled == {"part", "published"}
        if row["part"] == "plan":
            assert "measured" not in filled
            assert "published" not in filled


def test_the_same_folder_gives_the_same_report(write_sweep: WriteSweep) -> None:
    folder, record, _ = write_sweep(PROXY_TRIALS, HOW, plan=PLAN, published=PUBLISHED)
    first = [path.read_bytes() for path in files_of(report_of(Sweep(folder, record)))]
    assert [path.read_bytes() for path in files_of(report_of(Sweep(folder, record)))] == first


def test_before_anything_is_measured_it_says_what_to_do(write_sweep: WriteSweep) -> None:
    paths = report_of(write_sweep([PROXY_TRIALS[0], PROXY_TRIALS[1]], plan=PLAN))
    text = paths.markdown.read_text()
    assert "Nothing has been measured yet" in text
    assert "trisweep status made-up" in text
    assert "Ranked by" not in text
    page = page_without_library(paths)
    assert "Nothing has been measured yet" in page
    assert "<code>trisweep status made-up</code>" in page


def test_a_sweep_that_is_still_running_says_so_beside_its_best(proxy_report: ReportPaths) -> None:
    assert "The sweep is not finished: 1 trial has not ended." in proxy_report.markdown.read_text()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"base": performance(100.0)}, f"The sweep has ended, and 1 trial was not run: {LIMIT}."),
        ({}, f"Nothing was measured, and the sweep has ended: {LIMIT}. `trisweep sweep made-up` with a higher limit"),
    ],
    ids=["one was measured", "none was"],
)
def test_a_sweep_that_a_limit_has_ended_is_not_called_unfinished(
    write_sweep: WriteSweep, how: dict[str, Any], says: str
) -> None:
    sweep = write_sweep([PROXY_TRIALS[0], PROXY_TRIALS[1]], how)
    Journal(sweep.folder.journal).append(Begun(overrides=(), on_slurm=False), Finished(because=LIMIT))
    text = report_of(sweep).markdown.read_text()
    assert says in text
    assert "not finished" not in text
    assert "measured yet" not in text
    parent = next(sweep_runs(sweep.record, sweep.read(), ended=LIMIT))
    assert parent.status == "FINISHED"


def test_a_sweep_that_a_shared_mistake_has_ended_goes_on_once_that_is_corrected(write_sweep: WriteSweep) -> None:
    sweep = write_sweep([PROXY_TRIALS[0], PROXY_TRIALS[1]], {})
    because = "2 trials failed alike, and none has completed: SyntaxError: invalid syntax"
    Journal(sweep.folder.journal).append(Begun(overrides=(), on_slurm=False), Finished(because=because))
    says = f"Nothing was measured, and the sweep has ended: {because}. Correct that, and `trisweep sweep made-up"
    assert f"{says} --retry-failed` goes on." in report_of(sweep).markdown.read_text()


def test_when_everything_failed_it_says_so_with_the_causes(write_sweep: WriteSweep) -> None:
    paths = report_of(write_sweep([PROXY_TRIALS[0]], {"base": (Outcome.FAILED, "no space left")}, plan=()))
    text = paths.markdown.read_text()
    assert "Nothing was measured: every trial failed" in text
    assert "fix the first one and run `trisweep sweep made-up --retry-failed`." in text
    assert "no space left" in text
    assert "trials/base/logs" in text


@pytest.mark.parametrize(
    ("cause", "again"),
    [
        ("budget.deadline_hours = 1 have passed", " `trisweep sweep made-up` runs what was cancelled; raise the limit"),
        (CANCELLED_BY_NAME, ""),
    ],
)
def test_when_everything_was_cancelled_nothing_is_to_be_fixed(write_sweep: WriteSweep, cause: str, again: str) -> None:
    how = {"base": (Outcome.CANCELLED, cause), "two": (Outcome.CANCELLED, cause)}
    sweep = write_sweep([PROXY_TRIALS[0], PROXY_TRIALS[1]], how)
    said = verdict(sweep.record, sweep.read()).headline
    assert said.startswith(f"Nothing was measured: 2 trials were cancelled ({cause}).{again}")
    assert "fix the first" not in said


def test_a_report_tells_that_trials_were_cancelled_before_they_were_submitted(write_sweep: WriteSweep) -> None:
    begun = write_sweep([PROXY_TRIALS[0], PROXY_TRIALS[1]], {"base": performance(100.0)})
    Journal(begun.folder.journal).append(Cancelled(trial_id=None))
    text = report_of(Sweep.stored_in(begun.folder)).markdown.read_text()
    assert "2 trials: 1 measured, 1 cancelled." in text
    assert "has not ended" not in text
    never_begun = write_sweep([PROXY_TRIALS[0], PROXY_TRIALS[1]], {}, name="never")
    Journal(never_begun.folder.journal).append(Cancelled(trial_id=None))
    said = verdict(never_begun.record, Sweep.stored_in(never_begun.folder).read(), []).headline
    assert said.startswith(f"Nothing was measured: 2 trials were cancelled ({CALLED_OFF}). `trisweep sweep never` runs")


def test_a_layout_within_the_spread_of_the_best_is_called_a_tie(write_sweep: WriteSweep) -> None:
    """The made-up spread is 5 % either way: 97 may reach 100, 80 may not."""
    trials = [PROXY_TRIALS[0], trial("near", micro_batch_size=2, tensor_parallel_size=2, world_size=2), PROXY_TRIALS[1]]
    how = {"base": performance(100.0), "near": performance(97.0), "two": performance(80.0)}
    said = report_of(write_sweep(trials, how)).markdown.read_text().split("## Every trial")[0]
    headline = "No clear winner: tp1-pp1-dp1-mb1-gb8 had the highest rate per device, and 1 other may be as fast."
    assert headline in said
    assert "- model TFLOPS per device: **0.100** (measured, interval 0.0952 to 0.105)" in said
    assert "May be as fast: tp2-pp1-dp1-mb2-gb8 (0.0924 to 0.102)." in said
    assert "`trisweep sweep made-up search.max_rounds=3` measures the leaders further" in said


def test_of_two_points_the_faster_one_is_held_against_the_other(write_sweep: WriteSweep) -> None:
    trials = (trial("slow", is_baseline=True), trial("fast", micro_batch_size=2))
    said = report_of(write_sweep(trials, {"slow": performance(80.0), "fast": performance(100.0)})).markdown.read_text()
    assert "Its interval lies above that of the other (1 run; " in said


def test_commands_of_the_verdict_name_the_folder_in_which_the_sweep_is(write_sweep: WriteSweep) -> None:
    folder, record, _ = write_sweep([PROXY_TRIALS[0]], {"base": (Outcome.FAILED, "no space left")}, plan=())
    readings = Sweep(folder, record).read()
    assert (
        "`trisweep sweep made-up output_dir=there --retry-failed`"
        in verdict(record, readings, ["output_dir=there"]).headline
    )


def test_an_unknown_published_figure_is_refused_before_anything_is_written(write_sweep: WriteSweep) -> None:
    folder, record, _ = write_sweep(PROXY_TRIALS, HOW, published=["frontier-9z"])
    with refused(ConfigError, "sweep.published"):
        report_of(Sweep(folder, record))
    assert not any(folder.report(suffix).exists() for suffix in ("md", "csv", "html"))


def test_losses_of_trials_that_differ_in_more_than_their_layout_are_named_by_the_trial(
    write_sweep: WriteSweep,
) -> None:
    first = PROXY_TRIALS[0]
    assert first.experiment is not None
    values = first.experiment.model_dump()
    values["training"]["learning_rate"] = 0.5
    experiment = Experiment.model_validate(values)
    other = first.model_copy(update={"trial_id": "lr", "experiment": experiment, "is_baseline": False})
    measured = {"base": performance(100.0, losses=(5.0, 4.0)), "lr": performance(100.0, losses=(5.0, 3.0))}
    sweep = write_sweep([first, other], measured)
    page = page_without_library(report_of(sweep))
    assert "No two trials differ in their layout alone" in page
    figure = re.search(r'data-plot="plot-loss">(.*?)</script>', page, re.DOTALL)
    assert figure
    assert "lr=0.5" in figure.group(1)


def test_a_diverged_trial_does_not_break_the_plots(write_sweep: WriteSweep) -> None:
    losses = (5.0, float("nan"), float("inf"))
    how = {"base": performance(100.0, losses=losses, final_loss=float("nan"))}
    page = page_without_library(report_of(write_sweep([PROXY_TRIALS[0]], how)))
    figure = re.search(r'data-plot="plot-loss">(.*?)</script>', page, re.DOTALL)
    assert figure
    assert [value["loss"] for value in json.loads(figure.group(1))["data"]["values"]] == [5.0]
    assert "A loss that is not a finite number: tp1-pp1-dp1-mb1-gb8." in page


def test_markdown_tables_line_up_as_plain_text() -> None:
    table = Table(
        ("name", "value"), ((Cell("a|b"), Cell("1")), (Cell("long name"), Cell("1,000"))), frozenset({"value"})
    )
    assert table.markdown().splitlines() == [
        "| name      | value |",
        "|-----------|------:|",
        "| a\\|b      |     1 |",
        "| long name | 1,000 |",
    ]


def files_of(paths: ReportPaths) -> list[Path]:
    return [paths.markdown, paths.csv, paths.html]


def page_without_library(paths: ReportPaths) -> str:
    """The page without the library that draws its plots."""
    return paths.html.read_text().replace(plot_library(), "")


def test_counts_in_the_csv_are_whole_numbers_although_some_rows_have_none(proxy_report: ReportPaths) -> None:
    frame = pandas.read_csv(proxy_report.csv, dtype=str)
    for column in ("world_size", "measured_num_devices", "num_cores"):
        assert frame[column].notna().any()
        assert frame[column].isna().any()
        assert frame[column].dropna().str.fullmatch(r"\d+").all()


@pytest.mark.parametrize(
    ("overrides", "report_name", "note"),
    [
        ((), "report", ""),
        (("search.max_rounds=5",), "report", ""),
        (("cluster=frontier",), "report", "The sweep as it is filed, but with: cluster=frontier."),
        (("batch.micro_batch_size=1",), "report-part", "A part of the sweep: batch.micro_batch_size=1."),
    ],
)
def test_the_head_says_where_the_points_are_not_those_of_the_file(
    write_sweep: WriteSweep, overrides: tuple[str, ...], report_name: str, note: str
) -> None:
    folder, record, _ = write_sweep([PROXY_TRIALS[0]])
    changed = record.model_copy(update={"overrides": overrides})
    assert head_of(Sweep(SweepFolder(folder.path, report_name), changed)).note == note
