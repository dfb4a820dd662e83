"""`gpu-check.md`, one page to send back, and `gpu-check.json` with everything behind it."""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu_check import faults, hardware, layouts, speed
from benchmarks.gpu_check.agreement import TOLERANCES, power
from benchmarks.gpu_check.check import Result, Verdict
from benchmarks.gpu_check.machine import CheckedMachine, device_lines
from conf.grouped import grouped
from results.analysis.findings.comparable import TERM_COLUMNS
from results.render.units import gib, percent, seconds
from train_core.trial.atomic import write_atomically

PAGE, EVERYTHING = "gpu-check.md", "gpu-check.json"
MOST_CAUSE = 400
"""Characters of a cause on the page; all of it is in the JSON file."""

ONE_PEAK = "MFU: model FLOPs of a step over what the device's peak allows in its time."
PEAKS_DIFFER = (
    "MFU as measured is of a matrix product timed in the same run, as predicted of the configuration's peak: compare"
    " the steps, not these."
)

FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"<>:,;()\[\]]+/)+")
"""The folders of an absolute path. What stands behind the last slash is kept: without it no traceback helps."""

ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.\d)")
SHORTEST_NAME = 2
"""A shorter name of a user or host would be found inside of other words."""


class Report(NamedTuple):
    """The results so far, of which the page is written.

    Attributes:
        remark: of the predictions; empty where there is none.
        seconds: since the check began.
        is_whole: whether all checks have ended.
    """

    machine: CheckedMachine
    remark: str
    results: Sequence[Result]
    seconds: float
    is_whole: bool


def write_report(folder: Path, report: Report) -> None:
    """Replace both files."""
    write_atomically(folder / PAGE, page_of(report))
    content = {
        "machine": report.machine.model_dump(mode="json"),
        "remark": report.remark,
        "seconds": report.seconds,
        "is_whole": report.is_whole,
        "results": [result.model_dump(mode="json") for result in report.results],
    }
    write_atomically(folder / EVERYTHING, json.dumps(anonymous(content), indent=1) + "\n")


def summary(results: Sequence[Result]) -> str:
    """`38 checks: 35 passed, 1 failed, 2 left out`."""
    passed, failed, left_out = (sum(result.verdict is verdict for result in results) for verdict in Verdict)
    return f"{len(results)} checks: {passed} passed, {failed} failed, {left_out} left out"


def page_of(report: Report) -> str:
    lines = [
        "# Trisweep GPU check",
        "",
        f"**{summary(report.results)}**, in {report.seconds / 60:.1f} minutes."
        + ("" if report.is_whole else " It was interrupted, or is still running."),
        "",
        *(f"- {name}: {text}" for name, text in device_lines(report.machine).items()),
        "",
        *([report.remark, ""] if report.remark else []),
        *_layouts(report.results),
        *_faults(report.results),
        *_hardware(report.results),
        *_speed(report),
        *_terms(report.results),
        *_not_passed("What failed", report.results, Verdict.FAILED),
        *_not_passed("What was left out", report.results, Verdict.LEFT_OUT),
        f"Everything behind this page is in `{EVERYTHING}`. Neither holds names of hosts or users, or paths.",
    ]
    return anonymous("\n".join(lines) + "\n")


def _layouts(results: Sequence[Result]) -> Iterator[str]:
    of_layouts = [result for result in results if result.part == layouts.PART]
    if not of_layouts:
        return
    yield from ("## The same steps in every layout?", "")
    yield from ("| on | as on one device | largest relative difference |", "|---|---|---|")
    for num_ranks in sorted({result.num_ranks for result in of_layouts}):
        chosen = [result for result in of_layouts if result.num_ranks == num_ranks]
        made = [result for result in chosen if result.verdict is not Verdict.LEFT_OUT]
        if not made:
            continue
        passed = sum(result.verdict is Verdict.PASSED for result in made)
        left_out = f", {len(chosen) - len(made)} left out" if len(chosen) > len(made) else ""
        where = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
        yield f"| {where} | {passed} of {len(made)}{left_out} | {_largest(made)} |"
    dtypes = {result.figures["dtype"] for result in of_layouts if "dtype" in result.figures}
    limits = ((dtype, limit) for dtype, limit in TOLERANCES.items() if dtype in dtypes)
    texts = (f"{dtype} {limit.loss:g} in losses, {limit.norm:g} in norms of gradients" for dtype, limit in limits)
    yield from ("", f"Allowed are: {'; '.join(texts) or 'no differences, for there was nothing to compare'}.", "")


def _faults(results: Sequence[Result]) -> Iterator[str]:
    others = [result for result in results if result.part == faults.PART]
    if others:
        yield from ("## Does it do what it says?", "", "| check | result | what was seen |", "|---|---|---|")
        for result in others:
            seen = _cell(result.seen) if result.verdict is Verdict.PASSED else "see below"
            yield f"| {result.name} | {result.verdict} | {seen} |"
        yield ""


def _largest(results: Sequence[Result]) -> str:
    """The largest difference of each precision, in losses and in norms."""
    compared = (result.figures for result in results if "dtype" in result.figures)
    found = grouped(compared, lambda figures: figures["dtype"])
    return "; ".join(
        f"{dtype}: {power(max(figures['loss_difference'] for figures in some))} in losses,"
        f" {power(max(figures['norm_difference'] for figures in some))} in norms"
        for dtype, some in found.items()
    )


def _cell(text: str) -> str:
    shortened = text if len(text) <= MOST_CAUSE else f"{text[:MOST_CAUSE]} ..."
    return " ".join(shortened.split()).replace("|", "/")


def _hardware(results: Sequence[Result]) -> Iterator[str]:
    rows = [row for result in results if result.part == hardware.PART for row in result.figures.get("rows", [])]
    if rows:
        yield from ("## What the hardware reaches", "", "| what | measured | the configuration says |", "|---|---|---|")
        yield from (f"| {row['what']} | {row['measured']} | {row['stated']} |" for row in rows)
        yield ""


def _speed(report: Report) -> Iterator[str]:
    shapes = [result for result in report.results if result.part == speed.PART and "predicted" in result.figures]
    if not shapes:
        return
    # A device of which no data sheet is known is remarked on, and so are CPU ranks.
    yield from ("## How fast", "", PEAKS_DIFFER if report.remark else ONE_PEAK, "")
    yield "| model | layers | devices | layout | figures are | MFU % | step s | memory GiB |"
    yield "|---|---|---|---|---|---|---|---|"
    for result in shapes:
        figures = result.figures
        what = f"| {result.name} | {figures['layers']} | {figures['num_devices']} | {figures['layout']} |"
        for kind in ("measured", "predicted"):
            if kind in figures:
                yield f"{what} {kind} | {_rates(figures[kind])} |"
    yield ""


def _rates(figures: dict[str, float]) -> str:
    mfu, step = percent(figures["model_flops_utilization"]), seconds(figures["step_seconds"])
    return f"{mfu} | {step} | {gib(figures['memory_bytes'])}"


def _terms(results: Sequence[Result]) -> Iterator[str]:
    shapes = [result for result in results if result.figures.get("measured", {}).get("terms")]
    if not shapes:
        return
    yield from ("## Where a step goes, in seconds", "")
    yield f"| model | figures are | {' | '.join(name.removesuffix(' s') for name in TERM_COLUMNS)} |"
    yield "|---" * (2 + len(TERM_COLUMNS)) + "|"
    for result in shapes:
        for kind in ("measured", "predicted"):
            terms = " | ".join(seconds(term) for term in result.figures[kind]["terms"])
            yield f"| {result.name} | {kind} | {terms} |"
    yield ""


def _not_passed(heading: str, results: Sequence[Result], verdict: Verdict) -> Iterator[str]:
    """Each reason once, behind all the checks that it kept from passing."""
    by_reason = grouped((each for each in results if each.verdict is verdict), lambda each: _cell(each.seen))
    if by_reason:
        yield from (f"## {heading}", "")
        yield from (f"- **{'; '.join(each.name for each in some)}**: {reason}" for reason, some in by_reason.items())
        yield ""


def anonymous(value: Any) -> Any:
    """The same text, or value with every text in it, without what would tell strangers who and where somebody is."""
    if isinstance(value, str):
        return _without_names(ADDRESS.sub("[address]", FOLDERS.sub(".../", value)))
    if isinstance(value, Mapping):
        return {name: anonymous(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(inner) for inner in value]
    return value


def _without_names(text: str) -> str:
    for name, stands_in in ((socket.getfqdn(), "[host]"), (socket.gethostname(), "[host]"), (_user(), "[user]")):
        if len(name) >= SHORTEST_NAME and name not in ("localhost", "root"):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", stands_in, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number that has no name
        return ""
