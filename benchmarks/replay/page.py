"""A replayed sweep as people and programs read it: a table, and a document."""

from __future__ import annotations

from math import isinf
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.replay.contest import Contest
from conf.types.sweep_spec import ReplaySpec
from results.table import Table, text
from sweeps.trial import SweepRecord


def print_contest(console: Console, record: SweepRecord, contest: Contest, spec: ReplaySpec, cluster: str) -> None:
    """Print the jobs that each search needed until one was near the best."""
    console.print(
        f"Replayed against the cost model as the machine; nothing was measured. {spec.num_machines} made-up machines"
        " differ from the cost model in their constants, in effects that it does not know, and by noise."
    )
    exist, fit = _num_points(contest)
    console.print(f"{exist:,} points of the axes can exist, {fit:,} of them fit on paper.")
    console.print(_table(contest, spec.most_jobs))
    console.print(f"As jobs on the cluster: trisweep sweep {record.name} cluster={cluster}")


def question_of(record: SweepRecord) -> Text:
    """The sweep's name, in bold, and its question."""
    return Text.assemble((record.name, "bold"), f": {record.spec.question}")


def _num_points(contest: Contest) -> tuple[int, int]:
    """Points that can exist, and those of them that fit on paper."""
    return int(contest.study.is_searched.sum()), int(contest.study.fits_on_paper.sum())


def document_of(name: str, contest: Contest, spec: ReplaySpec) -> dict[str, Any]:
    """The contest for programs, as docs/json.md lists its keys."""
    exist, fit = _num_points(contest)
    searches = [
        {
            "search": each.name,
            "median_jobs": each.median_jobs,
            "most_jobs": each.most_jobs,
            "out_of_memory_share": each.share_lost,
            "worst_share_of_best": each.worst_share,
        }
        for each in contest.standings
    ]
    limits = {"num_machines": spec.num_machines, "most_jobs": spec.most_jobs}
    return {"sweep": name, **limits, "points_that_exist": exist, "points_that_fit": fit, "searches": searches}


def _table(contest: Contest, most_jobs: int) -> Table:
    caption = (
        "jobs: until one reaches 98 % of the best point's rate, the baseline included; the median and the worst over"
        f" the machines. none: no job did, before the search ended itself or within {most_jobs} jobs. best: what the"
        " best job reached, on the worst machine. Illegal points cost no job. TPE knows no cost model; the study, with"
        " another optimizer (DeepHyper's), knew none either, and allowed itself 1,000 evaluations."
    )
    columns = ("search", "jobs, median", "jobs, worst", "out of memory %", "best %")
    rows = []
    for each in contest.standings:
        jobs = ["none" if isinf(number) else f"{number:g}" for number in (each.median_jobs, each.most_jobs)]
        row = (each.name, *jobs, f"{each.share_lost:.0%}".rstrip("%"), f"{100 * each.worst_share:.1f}")
        rows.append(tuple(map(text, row)))
    return Table(columns, tuple(rows), frozenset(columns[1:]), title="Replayed", caption=caption)
