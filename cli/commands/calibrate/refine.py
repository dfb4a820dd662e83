"""`trisweep calibrate --from-results SWEEP` and `--from-csv FILE`: measured steps refine the constants of a cluster.

With `--propose SWEEP` nothing is refined: which five points of a sweep would say most of the constants?
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from calibrate.calibration import draft, name_to_write, stamp_of
from calibrate.cluster_file import Change, require_writable
from calibrate.measured_changes import source_after
from calibrate.measured_runs import Evidence
from calibrate.refit_cluster import FinishedTrial, Refit, refit_cluster, telling_runs
from cli.commands.calibrate.measure import changes_document, figure_text, print_changes, write_file
from cli.output.console import console, shown_path
from conf.compose.load import Composition
from conf.errors import UsageError
from conf.folders import given_words
from conf.overrides import for_a_shell
from conf.units import count_of
from results.table import Table, breakable, text
from sweeps.confidence import half_width
from sweeps.points.plan import plan_sweep
from sweeps.trial import Trial
from train_core.costs import IMPLEMENTATIONS


def propose(composition: Composition) -> dict[str, Any]:
    """Print the points to measure first, the most telling one first, and return them.

    Raises:
        UsageError: no point of the sweep can run.
    """
    record = plan_sweep(composition, proxy=False, git_sha="")
    points = [(trial, run) for trial in record.trials if (run := _as_predicted(trial)) is not None]
    if not points:
        problem = f"No point of sweep {record.name} can run on its cluster"
        raise UsageError(problem, f"`trisweep plan {record.name}` says why.")
    cluster = points[0][1].setup.cluster
    chosen = [points[index] for index in telling_runs(cluster, [run for _, run in points])]
    words = shlex.join([record.name, *composition.overrides.without_choice("sweep").texts, *given_words(shown_path)])
    _print(record.name, words, chosen, len(points))
    return {
        "cluster": cluster.name,
        "proposed": [
            {"trial_id": trial.trial_id, "point": trial.point, "predicted_step_seconds": run.step_seconds}
            for trial, run in chosen
        ],
    }


def _as_predicted(trial: Trial) -> FinishedTrial | None:
    """The trial as if its prediction had come true; None where it cannot run, or mixes devices."""
    experiment, predicted = trial.experiment, trial.estimate
    if experiment is None or predicted is None or trial.infeasible_reason is not None or experiment.mixed is not None:
        return None
    implementation = IMPLEMENTATIONS[experiment.trainer.costs_of]
    return FinishedTrial(experiment.label, experiment, predicted.step_seconds, None, True, implementation)


def _print(name: str, sweep: str, chosen: Sequence[tuple[Trial, FinishedTrial]], num_points: int) -> None:
    """Print what to measure first, and the commands for it.

    Args:
        sweep: the words by which a command names it, with its overrides.
    """
    rows = tuple((breakable(found.label), text(figure_text(found.step_seconds))) for _, found in chosen)
    columns = ("layout", "predicted s")
    console.print(Table(columns, rows, frozenset({"predicted s"}), title="Measure these first"))
    console.print(
        f"Of {count_of(num_points, 'point')} of sweep {name}, their steps would say most of the constants of"
        f" {chosen[0][1].setup.cluster.name}: each is"
        " the one whose step is least certain once those above it are known."
    )
    if (point := next((trial.point for trial, _ in chosen if trial.point), None)) is not None:
        values = " ".join(for_a_shell(key, value) for key, value in point.items())
        console.print("Values that a command names measure only those points, such as:")
        console.print(f"  trisweep sweep {sweep} {values}", soft_wrap=True)
    console.print(f"Then: trisweep calibrate --from-results {sweep}", soft_wrap=True)


def refine(evidence: Evidence, output: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Fit the constants to what was measured, write the cluster's file, and return what was changed.

    Args:
        dry_run: show the fit alone.

    Raises:
        UsageError: no measurement can be fitted to, or no constant makes predictions better.
    """
    cluster, stamp = evidence.cluster, stamp_of(time.time())
    output = name_to_write(cluster.name, output)
    if not dry_run:
        require_writable(cluster.name, output)
    fit = refit_cluster(cluster, evidence.trials)
    console.print(f"{evidence.in_words}, {cluster.name} as its file says now.")
    console.print(_trials_table(fit))
    changes = _fitted_changes(fit, evidence, stamp)
    notes = [f"{constant}: left as it was, {why}" for constant, why in fit.left_alone.items()]
    new = draft(
        cluster,
        output,
        changes,
        [*evidence.notes, *notes],
        stamp,
        f"fitted to {evidence.in_words}, {evidence.machines}",
    )
    print_changes(new, "fitted")
    _print_errors(fit, evidence)
    # A robust fit need not lower the mean error, and constants that predict worse are not worth writing.
    written = None
    if not changes or fit.error_after >= fit.error_before:
        console.print("The fit does not lower the mean error. Nothing was written; the file stays as it is.")
    elif dry_run:
        console.print("Nothing was written.")
    else:
        written = write_file(new)
    return changes_document(new, "fitted", written) | {
        "num_trials": sum(refitted.trial.counts for refitted in fit.trials),
        "mean_absolute_step_error_before": fit.error_before,
        "mean_absolute_step_error_after": fit.error_after,
        "mean_absolute_step_error_left_out": fit.error_left_out,
    }


def _fitted_changes(fit: Refit, evidence: Evidence, stamp: str) -> list[Change]:
    gain = f"mean error {100 * fit.error_before:.1f} % -> {100 * fit.error_after:.1f} %"
    origin = f"fitted: {evidence.in_words}, {gain}"
    moved = [name for name in fit.fitted_names if fit.after[name] != fit.before[name]]
    changes = [Change(("efficiency", name), fit.before[name], fit.after[name], origin) for name in moved]
    text = source_after(evidence.cluster.efficiency.source, moved, f"fitted to {evidence.in_words}, {stamp}")
    return [*changes, Change(("efficiency", "source"), None, text), *_runs(fit)] if changes else []


def _runs(fit: Refit) -> list[Change]:
    """The changes that say how far predictions may be trusted near these runs."""
    counted = [each.trial for each in fit.trials if each.trial.counts]
    # Of too few runs to leave one out, the error before is what constants said that had not seen them.
    error = fit.error_before if fit.error_left_out is None else fit.error_left_out
    trainers = ", ".join(sorted({trial.implementation.name for trial in counted}))
    values: dict[str, float | int | str] = {
        "left_out_error": error,
        "trainers": trainers,
        "most_devices": max(trial.setup.parallel.world_size for trial in counted),
    }
    return [Change(("efficiency", "runs", name), None, value) for name, value in values.items()]


def _print_errors(fit: Refit, evidence: Evidence) -> None:
    console.print(
        f"Mean error of the predicted step time over {evidence.of_kind}:"
        f" {100 * fit.error_before:.1f} % before, {100 * fit.error_after:.1f} % after."
    )
    if fit.error_left_out is None:
        console.print(f"Too few {evidence.kind} to leave one out and see whether the fit holds for others.")
        return
    console.print(
        f"Each of them predicted by a fit without it: {100 * fit.error_left_out:.1f} %. Near them, four measurements"
        f" of five are expected within {100 * half_width(fit.error_left_out):.1f} % of a prediction."
    )
    if fit.error_left_out >= fit.error_before:
        warning = f"That is no better than before: the fit describes these {evidence.kind} and may not hold."
        console.print(Text(warning, style="yellow"))


def _trials_table(fit: Refit) -> Table:
    """Seconds of a step of each trial; those that the fit did not use are marked."""
    columns = ("layout", "measured", "before", "after", "without it")
    rows = []
    for refitted in fit.trials:
        mark = "" if refitted.trial.counts else " (shares devices: not fitted to)"
        figures = (refitted.trial.step_seconds, refitted.before, refitted.after, refitted.left_out)
        name = breakable(refitted.trial.label + mark, after="- ")
        rows.append((name, *(text(figure_text(figure)) for figure in figures)))
    title = "Seconds of a step, predicted before and after the fit"
    return Table(columns, tuple(rows), frozenset(columns[1:]), title=title)
