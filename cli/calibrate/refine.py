"""`trisweep calibrate --from-results SWEEP`: finished trials refine the constants of the cost model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from calibrate.calibration import checked_output, draft, stamp_of
from calibrate.cluster_change import Change
from calibrate.cluster_file import require_writable
from calibrate.measured_sweep import measured_sweep
from calibrate.refit_cluster import FinishedTrial, Refit, finished_trials, refit_cluster
from calibrate.value_source import source_after
from cli.calibrate.output import changes_document, plain_table, print_changes, shown, write_file
from cli.console import console
from conf.load import Composition, load_cluster


def refine_and_write(asked: Composition, output: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Fit the constants to the trials of a sweep, write the cluster's file, and return what was changed.

    Args:
        dry_run: show the fit alone.

    Raises:
        UsageError: there is no such sweep, too few trials have ended, or no constant makes predictions better.
    """
    measured, name = measured_sweep(asked), str(asked.overrides.chosen("sweep"))
    cluster = load_cluster(measured.cluster)
    output = checked_output(cluster.name, output)
    if not dry_run:
        require_writable(cluster.name, output)
    trials = finished_trials(measured.sweep, cluster)
    found = refit_cluster(cluster, trials)
    console.print(f"{len(trials)} finished trials of sweep {name}, {cluster.name} as its file says now.")
    console.print(_trials_table(found))
    stamp = stamp_of(time.time())
    changes = _fitted_changes(found, name, cluster.efficiency.source, stamp)
    notes = [f"{constant}: left as it was, {why}" for constant, why in found.left_alone.items()]
    new = draft(cluster, output, changes, notes, stamp, _machines(name, trials))
    print_changes(new, "fitted")
    _print_errors(found)
    # A robust fit need not lower the mean error, and constants that predict worse are not worth writing.
    written = None
    if not changes or found.error_after >= found.error_before:
        console.print("The fit does not lower the mean error. Nothing was written; the file stays as it is.")
    elif dry_run:
        console.print("Nothing was written.")
    else:
        written = write_file(new)
    return changes_document(new, "fitted", written) | {
        "num_trials": sum(refitted.trial.counts for refitted in found.trials),
        "mean_absolute_step_error_before": found.error_before,
        "mean_absolute_step_error_after": found.error_after,
        "mean_absolute_step_error_left_out": found.error_left_out,
    }


def _fitted_changes(found: Refit, sweep: str, source: str, stamp: str) -> list[Change]:
    counted = sum(refitted.trial.counts for refitted in found.trials)
    gain = f"mean error {100 * found.error_before:.1f} % -> {100 * found.error_after:.1f} %"
    origin = f"fitted: {counted} trials of sweep {sweep}, {gain}"
    moved = [name for name in found.fitted if found.after[name] != found.before[name]]
    changes = [Change(("efficiency", name), found.before[name], found.after[name], origin) for name in moved]
    text = source_after(source, moved, f"fitted to {counted} trials of sweep {sweep}, {stamp}")
    return [*changes, Change(("efficiency", "source"), None, text)] if changes else []


def _machines(sweep: str, trials: Sequence[FinishedTrial]) -> str:
    counted = [trial.environment for trial in trials if trial.counts and trial.environment]
    hosts = sorted({it.hostname for it in counted})
    versions = sorted({f"torch {it.torch_version}, Python {it.python_version}, {it.backend}" for it in counted})
    return (
        f"fitted to {len(counted)} trials of sweep {sweep}, measured on {', '.join(hosts)} with {'; '.join(versions)}"
    )


def _print_errors(found: Refit) -> None:
    counted = sum(refitted.trial.counts for refitted in found.trials)
    console.print(
        f"Mean error of the predicted step time over {counted} trials: {100 * found.error_before:.1f} % before,"
        f" {100 * found.error_after:.1f} % after."
    )
    if found.error_left_out is None:
        console.print("Too few trials to leave one out and see whether the fit holds for others.")
        return
    console.print(f"Each trial predicted by a fit without it: {100 * found.error_left_out:.1f} %.")
    if found.error_left_out >= found.error_before:
        warning = "That is no better than before: the fit describes these trials and may not hold."
        console.print(Text(warning, style="yellow"))


def _trials_table(found: Refit) -> Table:
    """Seconds of a step of each trial; those that the fit did not use are marked."""
    table = plain_table("Seconds of a step", "layout", "measured", "predicted before", "after", "without it")
    for refitted in found.trials:
        mark = "" if refitted.trial.counts else " (shares devices: not fitted to)"
        predicted = (refitted.before, refitted.after, refitted.left_out)
        name = refitted.trial.label.replace("-", " ") + mark
        table.add_row(name, shown(refitted.trial.step_seconds), *map(shown, predicted))
    return table
