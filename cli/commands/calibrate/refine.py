"""`trisweep calibrate --from-results SWEEP` and `--from-csv FILE`: measured steps refine the constants of a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from calibrate.calibration import checked_output, draft, stamp_of
from calibrate.cluster_file import Change, require_writable
from calibrate.measured_changes import source_after
from calibrate.measured_sweep import measured_sweep
from calibrate.measured_table import measured_table
from calibrate.refit_cluster import FinishedTrial, Refit, finished_trials, refit_cluster
from cli.commands.calibrate.output import changes_document, plain_table, print_changes, shown, write_file
from cli.output.console import console
from conf.compose.load import Composition, load_cluster
from conf.overrides import Overrides
from conf.types.cluster_spec import ClusterSpec
from results.terminal.layout_names import LayoutCell
from sweeps.confidence import half_width


@dataclass(frozen=True)
class Evidence:
    """The measurements that constants are fitted to.

    Attributes:
        kind: what each measurement is: trials or rows.
        origin: where they are from, such as `sweep 175b`.
        machines: where and with which versions they were measured, for the line at the top of the file.
    """

    cluster: ClusterSpec
    trials: Sequence[FinishedTrial]
    kind: str
    origin: str
    machines: str
    notes: Sequence[str] = ()

    @property
    def of_kind(self) -> str:
        """The number of measurements and their kind: `5 rows`, `1 trial`."""
        number = sum(trial.counts for trial in self.trials)
        return f"{number} {self.kind if number != 1 else self.kind.removesuffix('s')}"

    @property
    def counted(self) -> str:
        """The number of measurements, and where they are from."""
        return f"{self.of_kind} of {self.origin}"


def refine_on_sweep(asked: Composition, output: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Fit the constants to the trials of a sweep, write the cluster's file, and return what was changed.

    Args:
        dry_run: show the fit alone.

    Raises:
        UsageError: there is no such sweep, no trial has ended, or no constant makes predictions better.
    """
    measured, name = measured_sweep(asked), str(asked.overrides.chosen("sweep"))
    cluster = load_cluster(measured.cluster)
    trials = finished_trials(measured.sweep, cluster)
    found = Evidence(cluster, trials, "trials", f"sweep {name}", _machines(trials))
    return _refine(found, output, dry_run=dry_run)


def refine_on_table(path: Path, overrides: Overrides, output: str | None, *, dry_run: bool) -> dict[str, Any]:
    """The same with the rows of a table of configurations that hold a measured step.

    Raises:
        UsageError: the table cannot be read, or holds nothing to fit to.
    """
    measured = measured_table(path, overrides.chosen("cluster"))
    cluster, machines = load_cluster(measured.cluster), "measured where the table says"
    found = Evidence(cluster, measured.trials, "rows", path.name, machines, measured.notes)
    return _refine(found, output, dry_run=dry_run)


def _refine(evidence: Evidence, output: str | None, *, dry_run: bool) -> dict[str, Any]:
    cluster, stamp = evidence.cluster, stamp_of(time.time())
    output = checked_output(cluster.name, output)
    if not dry_run:
        require_writable(cluster.name, output)
    found = refit_cluster(cluster, evidence.trials)
    console.print(f"{evidence.counted}, {cluster.name} as its file says now.")
    console.print(_trials_table(found))
    changes = _fitted_changes(found, evidence, stamp)
    notes = [f"{constant}: left as it was, {why}" for constant, why in found.left_alone.items()]
    new = draft(
        cluster,
        output,
        changes,
        [*evidence.notes, *notes],
        stamp,
        f"fitted to {evidence.counted}, {evidence.machines}",
    )
    print_changes(new, "fitted")
    _print_errors(found, evidence)
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


def _fitted_changes(found: Refit, evidence: Evidence, stamp: str) -> list[Change]:
    gain = f"mean error {100 * found.error_before:.1f} % -> {100 * found.error_after:.1f} %"
    origin = f"fitted: {evidence.counted}, {gain}"
    moved = [name for name in found.fitted if found.after[name] != found.before[name]]
    changes = [Change(("efficiency", name), found.before[name], found.after[name], origin) for name in moved]
    text = source_after(evidence.cluster.efficiency.source, moved, f"fitted to {evidence.counted}, {stamp}")
    return [*changes, Change(("efficiency", "source"), None, text), *_runs(found)] if changes else []


def _runs(found: Refit) -> list[Change]:
    """The changes that say how far predictions may be trusted near these runs."""
    counted = [each.trial for each in found.trials if each.trial.counts]
    # Of too few runs to leave one out, the error before is what constants said that had not seen them.
    error = found.error_before if found.error_left_out is None else found.error_left_out
    trainers = ", ".join(sorted({trial.implementation.name for trial in counted}))
    values: dict[str, float | int | str] = {
        "left_out_error": error,
        "trainers": trainers,
        "most_devices": max(trial.setup.parallel.world_size for trial in counted),
    }
    return [Change(("efficiency", "runs", name), None, value) for name, value in values.items()]


def _machines(trials: Sequence[FinishedTrial]) -> str:
    counted = [trial.environment for trial in trials if trial.counts and trial.environment]
    hosts = sorted({it.hostname for it in counted})
    versions = sorted({f"torch {it.torch_version}, Python {it.python_version}, {it.backend}" for it in counted})
    return f"measured on {', '.join(hosts)} with {'; '.join(versions)}"


def _print_errors(found: Refit, evidence: Evidence) -> None:
    console.print(
        f"Mean error of the predicted step time over {evidence.of_kind}:"
        f" {100 * found.error_before:.1f} % before, {100 * found.error_after:.1f} % after."
    )
    if found.error_left_out is None:
        console.print(f"Too few {evidence.kind} to leave one out and see whether the fit holds for others.")
        return
    console.print(
        f"Each of them predicted by a fit without it: {100 * found.error_left_out:.1f} %. Near them, four measurements"
        f" of five are expected within {100 * half_width(found.error_left_out):.1f} % of a prediction."
    )
    if found.error_left_out >= found.error_before:
        warning = f"That is no better than before: the fit describes these {evidence.kind} and may not hold."
        console.print(Text(warning, style="yellow"))


def _trials_table(found: Refit) -> Table:
    """Seconds of a step of each trial; those that the fit did not use are marked."""
    table = plain_table(
        "Seconds of a step, predicted before and after the fit", "layout", "measured", "before", "after", "without it"
    )
    for refitted in found.trials:
        mark = "" if refitted.trial.counts else " (shares devices: not fitted to)"
        predicted = (refitted.before, refitted.after, refitted.left_out)
        name = LayoutCell(refitted.trial.label + mark, after="- ")
        table.add_row(name, shown(refitted.trial.step_seconds), *map(shown, predicted))
    return table
