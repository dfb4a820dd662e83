"""`trisweep calibrate cluster=NAME`: measure in one job, show the rates, and write the cluster's file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from calibrate.calibration import Calibration, choose_calibration, draft_of_rates, measure
from calibrate.cluster_file import path_to_write
from cli.commands.calibrate.output import changes_document, figure_text, plain_table, print_changes, write_file
from cli.output.console import console, print_unwrapped
from conf.errors import EXIT_INTERRUPTED
from conf.overrides import Overrides
from conf.units import GIGA, TERA
from results.table import Table
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
