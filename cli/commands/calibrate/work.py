"""The work of `trisweep calibrate`: measure in one job, or refine on steps that were measured, and write the file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from calibrate.calibration import (
    Calibration,
    Draft,
    choose_calibration,
    draft,
    draft_of_rates,
    measure,
    name_to_write,
    stamp_of,
)
from calibrate.cluster_file import Change, dotted_key, path_to_write, require_writable
from calibrate.measured_changes import source_after
from calibrate.measured_runs import Evidence
from calibrate.refit_cluster import FEWEST_TO_FIT, FinishedTrial, Refit, refit_cluster, telling_runs
from cli.output.console import console, print_unwrapped, shown_path
from cli.output.explained import explain
from conf.compose.load import Composition
from conf.errors import EXIT_INTERRUPTED, UsageError
from conf.folders import given_words, is_own, options
from conf.overrides import Overrides, command_line, for_a_shell
from conf.types.cluster_spec import EfficiencySpec
from conf.units import GIGA, TERA, count_of
from costs import IMPLEMENTATIONS
from launcher import folder_lock
from rates.link_fit import fit_patterns
from rates.record import DeviceRates
from results.render.table import Table, breakable, text
from sweeps.confidence import half_width
from sweeps.points.plan import plan_sweep
from sweeps.trial import Trial


def measure_and_write(
    overrides: Overrides, output: str | None, num_nodes: int | None, *, here: bool, dry_run: bool
) -> dict[str, Any]:
    """Measure the named cluster, write its file, and return what was changed; `dry_run` shows the request alone."""
    calibration = choose_calibration(overrides, output, num_nodes, here=here, dry_run=dry_run)
    if dry_run:
        _show_request(calibration)
        return {"cluster": calibration.cluster.name, "sbatch": calibration.request, "written": None}
    rates = _measure(calibration)
    new = draft_of_rates(calibration.cluster, calibration.output, rates)
    console.print(_products_table(rates))
    if rates.link_times:
        console.print(_links_table(rates))
    _print_changes(new, "measured")
    return _changes_document(new, "measured", _write_file(new))


def _measure(calibration: Calibration) -> DeviceRates:
    where = calibration.executor.place
    console.print(f"Measuring {calibration.cluster.name} {where}: {calibration.shape} tasks, all at the same time.")
    try:
        with _progress_line() as tell:
            return measure(calibration, tell)
    except KeyboardInterrupt:
        path = path_to_write(calibration.output).name
        console.print(f"Interrupted. What was running has been ended, and {path} is as it was.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def _progress_line() -> Iterator[Callable[[str], None]]:
    """A function to report progress to: a terminal shows one line that changes, a log a line for each new message."""
    last_line = ""

    def tell(line: str) -> None:
        nonlocal last_line
        if line and line != last_line:
            last_line = line
            if status is not None:
                status.update(line)
            else:
                console.print(f"  {line}")

    if not console.is_terminal or console.is_dumb_terminal:
        status = None
        yield tell
        return
    with console.status("starting") as status:
        yield tell


def _show_request(calibration: Calibration) -> None:
    folder_lock.require_writable(calibration.folder.path)
    plan = calibration.plan
    console.print(f"{calibration.shape} tasks on {plan.kind}s would measure, for cluster/{calibration.output}.yaml:")
    num_products = len(plan.large_products) + len(plan.thin_products)
    console.print(f"  {num_products} matrix products and {len(plan.attention_shapes)} attentions in each of", end=" ")
    console.print(", ".join(plan.dtypes) + "; memory; small kernels")
    for link in plan.links:
        console.print(f"  link {link.name}: groups of {', '.join(map(str, link.group_sizes))}")
    if (request := calibration.request) is not None:
        print_unwrapped(request)
        explain([request], calibration.settings)
    console.print("Nothing was run or written.")


def _products_table(rates: DeviceRates) -> Table:
    by_shape = {(rate.product, rate.dtype): rate.flops_per_second.median / TERA for rate in rates.products}
    rows = []
    for product in dict.fromkeys(rate.product for rate in rates.products):
        shape = f"{product.rows} x {product.depth} x {product.columns}"
        rows.append((shape, *(_figure_text(by_shape[product, dtype]) for dtype in rates.plan.dtypes)))
    title = "Matrix products, measured: TFLOPS of one rank, all ranks at once"
    return _plain_table(title, ("shape", *rates.plan.dtypes), rows)


def _links_table(rates: DeviceRates) -> Table:
    """The fit of each pattern: the file has only one bandwidth and one latency a link, which stand for all of these."""
    rows = []
    for link in dict.fromkeys(timed.link for timed in rates.link_times):
        for pattern, fit in fit_patterns([timed for timed in rates.link_times if timed.link == link]).items():
            figures = (fit.bandwidth_bytes_per_second / GIGA, 1e6 * fit.latency_seconds, 100 * fit.error)
            rows.append((link, pattern.replace("_", "-"), *map(_figure_text, figures)))
    columns = ("link", "pattern", "GB/s", "microseconds", "error %")
    return _plain_table("Links, measured: fit of each pattern alone", columns, rows)


def propose(composition: Composition) -> dict[str, Any]:
    """Print the points to measure first, the most telling one first, and return them.

    Raises UsageError where no point of the sweep can run.
    """
    record = plan_sweep(composition, proxy=False, git_sha="")
    points = [(trial, run) for trial in record.trials if (run := _as_predicted(trial)) is not None]
    if not points:
        problem = f"No point of sweep {record.name} can run on its cluster"
        raise UsageError(problem, f"`trisweep plan {record.name}` says why.")
    cluster = points[0][1].setup.cluster
    chosen = [points[index] for index in telling_runs(cluster, [run for _, run in points])]
    words = command_line([record.name, *composition.overrides.without_choice("sweep").words, *given_words(shown_path)])
    _print_proposed(record.name, words, chosen, len(points))
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


def _print_proposed(name: str, sweep: str, chosen: Sequence[tuple[Trial, FinishedTrial]], num_points: int) -> None:
    rows = tuple((breakable(found.label), text(_figure_text(found.step_seconds))) for _, found in chosen)
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

    Raises UsageError where no measurement can be fitted to, or no constant makes predictions better.
    """
    cluster, stamp = evidence.cluster, stamp_of(time.time())
    output = name_to_write(cluster.name, output)
    if not dry_run:
        require_writable(cluster.name, output)
    fit = refit_cluster(cluster, evidence.trials)
    console.print(f"{evidence.in_words}, {cluster.name} as its file says now.")
    console.print(_trials_table(fit))
    changes = _fitted_changes(fit, evidence, stamp)
    notes = [f"{constant}: left as it was, {why}" for constant, why in fit.left_alone.items() if not fit.levels]
    for name, level in fit.levels.items():
        few = (
            ""
            if level.num_runs >= FEWEST_TO_FIT
            else f"; from {FEWEST_TO_FIT} {evidence.kind} on, constants are fitted"
        )
        notes.append(f"All predictions for {name} take {level.factor:.3g} times what the constants say{few}")
    machine = f"fitted to {evidence.in_words}, {evidence.machines}"
    new = draft(cluster, output, changes, [*evidence.notes, *notes], stamp, machine)
    _print_changes(new, "fitted")
    _print_errors(fit, evidence)
    # A robust fit need not lower the mean error, and constants that predict worse are not worth writing. A level is
    # what is to be expected of the next run, whichever of these few it suits.
    written = None
    if not changes or (not fit.levels and fit.error_after >= fit.error_before):
        console.print("The fit does not lower the mean error. Nothing was written; the file stays as it is.")
    elif dry_run:
        console.print("Nothing was written.")
    else:
        written = _write_file(new)
    return _changes_document(new, "fitted", written) | {
        "num_trials": sum(refitted.trial.counts for refitted in fit.trials),
        "mean_absolute_step_error_before": fit.error_before,
        "mean_absolute_step_error_after": fit.error_after,
        "mean_absolute_step_error_left_out": fit.error_left_out,
    }


def _fitted_changes(fit: Refit, evidence: Evidence, stamp: str) -> list[Change]:
    gain = f"mean error {100 * fit.error_before:.1f} % -> {100 * fit.error_after:.1f} %"
    origin, efficiency = f"fitted: {evidence.in_words}, {gain}", evidence.cluster.efficiency
    if fit.levels:
        return _level_changes(fit, efficiency, origin)
    moved = [name for name in fit.fitted_names if fit.after[name] != fit.before[name]]
    changes = [Change(("efficiency", name), fit.before[name], fit.after[name], origin) for name in moved]
    text = source_after(efficiency.source, moved, f"fitted to {evidence.in_words}, {stamp}")
    # What the constants say now needs no factor.
    settled = [Change(("efficiency", "levels", name, "factor"), None, 1.0) for name in efficiency.levels]
    return [*changes, Change(("efficiency", "source"), None, text), *_run_changes(fit), *settled] if changes else []


def _level_changes(fit: Refit, efficiency: EfficiencySpec, origin: str) -> list[Change]:
    """The changes that say what runs of each trainer took; the runs of an earlier fit say nothing beside them."""
    changes = [] if efficiency.runs is None else [Change(("efficiency", "runs", "trainers"), None, "")]
    for name, level in fit.levels.items():
        before = efficiency.levels[name].factor if name in efficiency.levels else None
        changes.append(Change(("efficiency", "levels", name, "factor"), before, level.factor, origin))
        changes.append(Change(("efficiency", "levels", name, "num_runs"), None, level.num_runs))
    return changes


def _run_changes(fit: Refit) -> list[Change]:
    """The changes that say how far predictions may be trusted near these runs."""
    counted = [each.trial for each in fit.trials if each.trial.counts]
    # Of too few runs to leave one out, the error before is what constants said that had not seen them.
    values: dict[str, float | int | str] = {
        "left_out_error": fit.error_before if fit.error_left_out is None else fit.error_left_out,
        "trainers": ", ".join(sorted({trial.implementation.name for trial in counted})),
        "most_devices": max(trial.setup.parallel.world_size for trial in counted),
        "num_runs": len(counted),
    }
    return [Change(("efficiency", "runs", name), None, value) for name, value in values.items()]


def _print_errors(fit: Refit, evidence: Evidence) -> None:
    console.print(
        f"Mean error of the predicted step time over {evidence.of_kind}:"
        f" {100 * fit.error_before:.1f} % before, {100 * fit.error_after:.1f} % after."
    )
    if fit.error_left_out is None:
        console.print(f"Too few {evidence.kind} to leave one out and see whether this holds for others.")
        return
    within = f"within {100 * half_width(fit.error_left_out):.1f} % of a prediction"
    near = "" if fit.levels else f" Near them, four measurements of five are expected {within}."
    console.print(f"Each of them predicted from the others: {100 * fit.error_left_out:.1f} %.{near}")
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
        rows.append((name, *(text(_figure_text(figure)) for figure in figures)))
    title = "Seconds of a step, predicted before and after the fit"
    return Table(columns, tuple(rows), frozenset(columns[1:]), title=title)


def _print_changes(new: Draft, how: str) -> None:
    """Print every number as it was and as it is now, `how` (measured or fitted), and the range of the new one."""
    rows = []
    for change in new.changes:
        if isinstance(change.after, float | int):
            within = change.lowest is not None and change.highest is not None
            span = f"{_figure_text(change.lowest)} to {_figure_text(change.highest)}" if within else ""
            name = dotted_key(change.path, new.cluster).removeprefix("cluster.")
            rows.append((name, _figure_text(change.before), _figure_text(change.after), span))
    console.print(_plain_table(f"cluster/{new.output}.yaml", ("value", "was", how, "range"), rows))
    for note in new.notes:
        console.print(f"{note}.")


def _write_file(new: Draft) -> Path:
    """Put the file in its place, say where that is, and return it."""
    path = new.write()
    console.print(f"Written: {shown_path(path)}")
    if not is_own(path):
        console.print(
            "That is the package's own file in this checkout: `git diff` shows what changed in it. --output NAME, or a"
            " folder of your own (`trisweep init`), leaves it as it is."
        )
    if new.output != new.cluster.name and new.cluster.name in options("slurm"):
        copy = f"copy slurm/{new.cluster.name}.yaml to slurm/{new.output}.yaml"
        console.print(f"Slurm settings go by the name too: {copy}.")
    return path


def _changes_document(new: Draft, how: str, written: Path | None) -> dict[str, Any]:
    """Every number as it was and as it is now, for JSON. Units are those of the cluster's file."""
    changes = [
        {"key": dotted_key(each.path, new.cluster), "before": each.before, how: each.after}
        | {"lowest": each.lowest, "highest": each.highest}
        for each in new.changes
        if isinstance(each.after, float | int)
    ]
    return {"cluster": new.cluster.name, "changes": changes, "notes": list(new.notes), "written": written}


def _plain_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table that has a name and numbers in each row."""
    numeric = frozenset(columns[1:]) - {"pattern", "range"}
    return Table(tuple(columns), tuple(tuple(map(text, row)) for row in rows), numeric, title=title)


def _figure_text(value: float | None) -> str:
    """Three significant digits, and all of a count; nothing for None."""
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else f"{value:.3g}"
