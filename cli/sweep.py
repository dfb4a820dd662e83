"""`trisweep sweep`: plan, measure and report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.allocation import show_allocation, sweep_in_allocation
from cli.arguments import OverrideTexts, ShowConfig, SweepName, composed, overrides_of, print_config
from cli.console import console, shown_path
from cli.plan import print_plan, print_question
from cli.replay import is_replayed, print_replay
from conf.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from launcher.where import Place
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepRecord

Here = Annotated[bool, typer.Option("--here", help="Measure on this machine even where Slurm is.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print points, requests and sbatch text; submit nothing.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run again what failed or timed out.")]


def sweep(
    name: SweepName,
    overrides: OverrideTexts = None,
    dry_run: DryRun = False,
    here: Here = False,
    retry_failed: RetryFailed = False,
    cfg: ShowConfig = False,
) -> None:
    """Plan, measure and report: through Slurm with cluster=NAME, else the sweep's proxy on this machine.

    The same command continues a sweep that was interrupted, and never runs a finished point twice.
    """
    from launcher.tokens import prepare_tokens
    from launcher.where import choose_place
    from sweeps.plan import plan_sweep
    from sweeps.sweep import Sweep
    from train_core.process.git_sha import git_sha

    if cfg:
        print_config(composed(name, overrides))
        return
    place = choose_place(overrides_of(name, overrides), here=here, dry_run=dry_run)
    if is_replayed(place):
        print_replay(place)
        return
    # A sweep that goes on keeps its record, because planning it again would give it another date.
    record = place.folder.continued(plan_sweep(place.composition, proxy=place.proxy, git_sha=git_sha()))
    in_allocation = place.on_slurm and place.settings.launcher.kind == "allocation"
    if dry_run:
        show_allocation(place, record) if in_allocation else _show_what_would_run(place, record)
        return
    prepare_tokens(place.folder, record)
    planned = Sweep(place.folder, record)
    if in_allocation:
        sweep_in_allocation(place, planned, retry_failed=retry_failed)
    elif place.on_slurm:
        _submit(place, planned, retry_failed)
    else:
        _run_here(place, planned, retry_failed)


def _show_what_would_run(place: Place, record: SweepRecord) -> None:
    """The points, and, for Slurm, each request with the text that sbatch would get."""
    from launcher.sweep import dry_run
    from sweeps.sweep import Sweep

    print_plan(record)
    chosen = [trial for trial in record.trials if trial.selected]
    if not place.on_slurm:
        console.print(f"{len(chosen)} trials would run on this machine:")
        for trial in chosen:
            console.print(f"  {trial.trial_id}")
        return
    requests = dry_run(Sweep(place.folder, record), place.settings.slurm)
    hours = sum(request.device_hours for request in requests)
    for request in requests:
        each = _hours(place, request.device_hours / len(request.trials))
        console.rule(f"{len(request.trials)} trials of {request.shape} tasks, each {each}")
        for index, trial in enumerate(request.trials):
            console.print(f"  [{index}] {trial.trial_id}")
        typer.echo(request.sbatch)  # by no rich console, which would wrap its lines
    console.print(f"{len(chosen)} trials in {len(requests)} job arrays, {_hours(place, hours)}. Nothing was submitted.")


def _submit(place: Place, planned: Sweep, retry_failed: bool) -> None:
    from launcher.sweep import submit

    done = submit(planned, place.settings.slurm, retry_failed=retry_failed)
    for array in done.arrays:
        console.print(f"  job {array.job_id}: {len(array.trial_ids)} trials of {array.shape} tasks")
    console.print(
        f"{done.num_submitted} trials submitted ({_hours(place, done.device_hours)}), {done.num_live} queued or"
        f" running already, {done.num_kept} finished. Folder: {shown_path(place.folder.path)}"
    )
    # The commands below are meant to be copied, so they repeat an output folder that was chosen.
    elsewhere = place.composition.overrides.of({"output_dir"}).texts
    where = " ".join((f"cluster={place.settings.cluster.name}", *elsewhere))
    for command in ("status", "report", "cancel"):
        console.print(f"  trisweep {command} {planned.record.name} {where}")


def _hours(place: Place, hours: float) -> str:
    """What a request costs if every job runs into its time limit."""
    unit = "GPU-hours" if place.settings.cluster.device.kind == "gpu" else "core-hours"
    return f"{hours:,.0f} {unit} at most"


def _run_here(place: Place, planned: Sweep, retry_failed: bool) -> None:
    from cli.progress import progress_on
    from cli.report import report_on
    from launcher.sweep import run_here

    if place.proxy:
        _print_full_size_summary(planned.record)
    spec = planned.record.spec.proxy
    # A trial at full size has no time limit here; in Slurm it has slurm.time_limit_minutes.
    limit = spec.time_limit_minutes * 60 if place.proxy and spec else None
    progress = progress_on(console)
    try:
        run_here(planned, time_limit_seconds=limit, progress=progress, retry_failed=retry_failed)
    except KeyboardInterrupt:
        ended = sum(reading.outcome is not None and reading.outcome.is_final for reading in planned.read())
        console.print(
            f"Interrupted with {ended} of {len(planned.record.trials)} points ended. The same command continues."
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    report_on(planned, place.settings.tracking)


def _print_full_size_summary(record: SweepRecord) -> None:
    """What the plan says of the full size, in a few lines, before the proxy is measured."""
    fitting = sum(trial.infeasible_reason is None for trial in record.plan)
    impossible = sum(trial.experiment is None for trial in record.plan)
    lacking = len(record.plan) - fitting - impossible
    print_question(record)
    console.print(f"{len(record.plan)} points: {fitting} fit, {lacking} lack memory, {impossible} cannot exist.")
    console.print(f"Measured here: {sum(trial.selected for trial in record.trials)} points of its proxy.")
