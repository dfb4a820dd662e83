"""A sweep that is replayed against the cost model as the machine, where there is no cluster to measure it on."""

from __future__ import annotations

from math import isinf
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from cli.output.console import console, heading, print_json

if TYPE_CHECKING:
    from conf.types.sweep_spec import ReplaySpec
    from launcher.where import SweepPlace
    from sweeps.replay.contest import Contest


def is_replayed(place: SweepPlace) -> bool:
    """True if the sweep asks for a replay, and there is no cluster on which it could be measured."""
    sweep = place.settings.sweep
    return sweep is not None and sweep.replay is not None and not place.on_slurm


def print_replay(place: SweepPlace, *, as_json: bool) -> None:
    """Print the jobs that the sweep's search and others need on made-up machines until one is near the best."""
    from sweeps.points.plan import plan_sweep
    from sweeps.replay.contest import contest

    record = plan_sweep(place.composition, proxy=False, git_sha="")
    spec = record.spec.replay
    assert spec is not None
    console.print(heading(record.name, f": {record.spec.question}"))
    with console.status("Replaying ..."):
        result = contest(place.composition, record, spec)
    if as_json:
        print_json("replay", _document(record.name, result, spec))
        return
    cluster = place.settings.cluster.name
    console.print(
        f"Replayed against the cost model as the machine; nothing was measured. {spec.num_machines} made-up machines"
        " differ from the cost model in their constants, in effects that it does not know, and by noise."
    )
    exist, fit = _num_points(result)
    console.print(f"{exist:,} points of the axes can exist, {fit:,} of them fit on paper.")
    console.print(_table(result, spec.most_jobs))
    console.print(f"As jobs on the cluster: trisweep sweep {record.name} cluster={cluster}")


def _num_points(result: Contest) -> tuple[int, int]:
    """Points that can exist, and those of them that fit on paper."""
    return int(result.study.is_searched.sum()), int(result.study.fits_on_paper.sum())


def _document(name: str, result: Contest, spec: ReplaySpec) -> dict[str, Any]:
    exist, fit = _num_points(result)
    searches = [
        {
            "search": each.name,
            "median_jobs": each.median_jobs,
            "most_jobs": each.most_jobs,
            "out_of_memory_share": each.share_lost,
            "worst_share_of_best": each.worst_share,
        }
        for each in result.standings
    ]
    limits = {"num_machines": spec.num_machines, "most_jobs": spec.most_jobs}
    return {"sweep": name, **limits, "points_that_exist": exist, "points_that_fit": fit, "searches": searches}


def _table(result: Contest, most_jobs: int) -> Table:
    caption = (
        "jobs: until one reaches 98 % of the best point's rate, the baseline included; the median and the worst over"
        f" the machines. none: no job did, before the search ended itself or within {most_jobs} jobs. best: what the"
        " best job reached, on the worst machine. Illegal points cost no job. TPE knows no cost model; the study, with"
        " another optimizer (DeepHyper's), knew none either, and allowed itself 1,000 evaluations."
    )
    table = Table(title="Replayed", caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.caption_justify = "left"
    table.add_column("search", overflow="fold")
    for name in ("jobs, median", "jobs, worst", "out of memory %", "best %"):
        table.add_column(name, justify="right")
    for each in result.standings:
        jobs = ["none" if isinf(number) else f"{number:g}" for number in (each.median_jobs, each.most_jobs)]
        table.add_row(each.name, *jobs, f"{each.share_lost:.0%}".rstrip("%"), f"{100 * each.worst_share:.1f}")
    return table
