"""`trisweep sweep`: plan, measure and report."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.arguments import AsJson, OverrideTexts, ShowConfig, SweepName, composition_of, overrides_of, print_config

Here = Annotated[bool, typer.Option("--here", help="Measure on this machine even where Slurm is.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what the same command does; start, submit and write nothing.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run again what failed or timed out.")]
Remeasure = Annotated[bool, typer.Option("--remeasure", help="Measure again what is measured; earlier runs stay.")]
FailFast = Annotated[int | None, typer.Option(help="Stop once so many trials have failed.", min=1)]


def sweep(
    name: SweepName,
    overrides: OverrideTexts = None,
    dry_run: DryRun = False,
    here: Here = False,
    retry_failed: RetryFailed = False,
    remeasure: Remeasure = False,
    fail_fast: FailFast = None,
    cfg: ShowConfig = False,
    as_json: AsJson = False,
) -> None:
    """Plan, measure and report: through Slurm with cluster=NAME, else the sweep's proxy on this machine.

    The same command continues a sweep that was interrupted, and never runs a finished point twice. On this machine the
    leaders are measured up to search.max_rounds times, in turn, until they can be told apart.
    """
    if fail_fast is not None:
        overrides = [*(overrides or ()), f"controller.fail_fast={fail_fast}"]
    if cfg:
        print_config(composition_of(name, overrides))
        return
    from cli.commands.sweep.run import run_sweep

    run_sweep(
        overrides_of(name, overrides),
        dry_run=dry_run,
        here=here,
        retry_failed=retry_failed,
        remeasure=remeasure,
        as_json=as_json,
    )
