"""`python -m benchmarks.replay SWEEP [KEY=VALUE ...] [--json]`: a sweep replayed on made-up machines, without a job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import isinf
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.replay.contest import Contest, contest_of
from conf.compose.load import compose
from conf.errors import EXIT_USAGE, ConfigError, TrisweepError
from conf.overrides import Overrides
from conf.types.sweep_spec import ReplaySpec
from results.render.json_and_csv import json_lines
from results.render.table import Table, text
from sweeps.points.plan import plan_sweep
from sweeps.trial import SweepRecord


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the sweep and print the result; the exit code."""
    request = _parser().parse_args(arguments)
    try:
        replay(request.sweep, request.overrides, as_json=request.json)
    except TrisweepError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    return 0


def replay(sweep: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print the jobs that the sweep's search and others need on made-up machines until one is near the best.

    Raises:
        ConfigError: the configuration is wrong, or the sweep says nothing of a replay.
    """
    console = Console(highlight=False, markup=False, emoji=False, stderr=as_json)
    composition = compose(Overrides.choosing("sweep", sweep) + Overrides.parse(overrides))
    record = plan_sweep(composition, proxy=False, git_sha="")
    spec = record.spec.replay
    if spec is None:
        remedy = "Add num_machines and most_jobs under it, or replay frontier-study."
        raise ConfigError("sweep.replay", None, f"says nothing of how {record.name} is replayed", remedy)
    console.print(Text.assemble((record.name, "bold"), f": {record.spec.question}"))
    with console.status("Replaying ..."):
        contest = contest_of(composition, record, spec)
    if as_json:
        sys.stdout.writelines(json_lines("replay", document_of(record.name, contest, spec)))
    else:
        print_contest(console, record, contest, spec, composition.settings.cluster.name)


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("sweep", metavar="SWEEP", help="a sweep with sweep.replay, such as frontier-study")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for trisweep sweep")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
