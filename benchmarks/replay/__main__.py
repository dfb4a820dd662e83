"""`python -m benchmarks.replay SWEEP [KEY=VALUE ...] [--json]`: a sweep replayed on made-up machines, without a job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.replay.contest import contest_of
from benchmarks.replay.page import document_of, print_contest, question_of
from conf.compose.load import compose
from conf.errors import EXIT_USAGE, ConfigError, TrisweepError
from conf.overrides import Overrides
from results.machine_text import json_text
from sweeps.points.plan import plan_sweep


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
    console.print(question_of(record))
    with console.status("Replaying ..."):
        contest = contest_of(composition, record, spec)
    if as_json:
        print(json_text("replay", document_of(record.name, contest, spec)))
    else:
        print_contest(console, record, contest, spec, composition.settings.cluster.name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("sweep", metavar="SWEEP", help="a sweep with sweep.replay, such as frontier-study")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for trisweep sweep")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
