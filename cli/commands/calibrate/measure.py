"""`trisweep calibrate cluster=NAME`: measure in one job, show the rates, and write the cluster's file.

How any calibration prints the values before and after, and that the file is written, stands here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from calibrate.calibration import Calibration, Draft, choose_calibration, draft_of_rates, measure
from calibrate.cluster_file import dotted_key, path_to_write
from cli.output.console import console, print_unwrapped, shown_path
from conf.errors import EXIT_INTERRUPTED
from conf.folders import options
from conf.overrides import Overrides
from conf.units import GIGA, TERA
from results.table import Table, text
from train_core.rates.link_fit import fit_patterns
from train_core.rates.record import DeviceRates


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
    print_changes(new, "measured")
    return changes_document(new, "measured", write_file(new))


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
    plan = calibration.plan
    console.print(f"{calibration.shape} tasks on {plan.kind}s would measure, for cluster/{calibration.output}.yaml:")
    num_products = len(plan.large_products) + len(plan.thin_products)
    console.print(f"  {num_products} matrix products and {len(plan.attention_shapes)} attentions in each of", end=" ")
    console.print(", ".join(plan.dtypes) + "; memory; small kernels")
    for link in plan.links:
        console.print(f"  link {link.name}: groups of {', '.join(map(str, link.group_sizes))}")
    if (request := calibration.request) is not None:
        print_unwrapped(request)
    console.print("Nothing was run or written.")


def _products_table(rates: DeviceRates) -> Table:
    by_shape = {(rate.product, rate.dtype): rate.flops_per_second.median / TERA for rate in rates.products}
    rows = []
    for product in dict.fromkeys(rate.product for rate in rates.products):
        shape = f"{product.rows} x {product.depth} x {product.columns}"
        rows.append((shape, *(figure_text(by_shape[product, dtype]) for dtype in rates.plan.dtypes)))
    title = "Matrix products, measured: TFLOPS of one rank, all ranks at once"
    return plain_table(title, ("shape", *rates.plan.dtypes), rows)


def _links_table(rates: DeviceRates) -> Table:
    """The fit of each pattern: the file has only one bandwidth and one latency a link, which stand for all of these."""
    rows = []
    for link in dict.fromkeys(timed.link for timed in rates.link_times):
        for pattern, fit in fit_patterns([timed for timed in rates.link_times if timed.link == link]).items():
            figures = (fit.bandwidth_bytes_per_second / GIGA, 1e6 * fit.latency_seconds, 100 * fit.error)
            rows.append((link, pattern.replace("_", "-"), *map(figure_text, figures)))
    columns = ("link", "pattern", "GB/s", "microseconds", "error %")
    return plain_table("Links, measured: fit of each pattern alone", columns, rows)


def print_changes(new: Draft, how: str) -> None:
    """Print every number as it was and as it is now, `how` (measured or fitted), and the range of the new one."""
    rows = []
    for change in new.changes:
        if isinstance(change.after, float | int):
            within = change.lowest is not None and change.highest is not None
            span = f"{figure_text(change.lowest)} to {figure_text(change.highest)}" if within else ""
            name = dotted_key(change.path, new.cluster).removeprefix("cluster.")
            rows.append((name, figure_text(change.before), figure_text(change.after), span))
    console.print(plain_table(f"cluster/{new.output}.yaml", ("value", "was", how, "range"), rows))
    for note in new.notes:
        console.print(f"{note}.")


def write_file(new: Draft) -> Path:
    """Put the file in its place, say where that is, and return it."""
    path = new.write()
    console.print(f"Written: {shown_path(path)}")
    if new.output != new.cluster.name and new.cluster.name in options("slurm"):
        console.print(
            f"Slurm settings go by the name too: copy slurm/{new.cluster.name}.yaml to slurm/{new.output}.yaml."
        )
    return path


def changes_document(new: Draft, how: str, written: Path | None) -> dict[str, Any]:
    """Every number as it was and as it is now, for JSON. Units are those of the cluster's file.

    Args:
        how: where the new numbers come from: measured or fitted.
        written: the file; None where nothing was written.
    """
    changes = [
        {
            "key": dotted_key(change.path, new.cluster),
            "before": change.before,
            how: change.after,
            "lowest": change.lowest,
            "highest": change.highest,
        }
        for change in new.changes
        if isinstance(change.after, float | int)
    ]
    return {"cluster": new.cluster.name, "changes": changes, "notes": list(new.notes), "written": written}


def plain_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table that has a name and numbers in each row."""
    numeric = frozenset(columns[1:]) - {"pattern", "range"}
    return Table(tuple(columns), tuple(tuple(map(text, row)) for row in rows), numeric, title=title)


def figure_text(value: float | None) -> str:
    """Three significant digits, and all of a count; nothing for None."""
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else f"{value:.3g}"
