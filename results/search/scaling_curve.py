"""Predicted scaling, for a terminal and for JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from results.layout_cell import LayoutCell
from results.search.rows import layout
from results.units import count, percent, seconds, tflops
from sweeps.planner.objectives import ScalingKind
from sweeps.planner.scaling import ScalingPoint

TITLES: dict[ScalingKind, str] = {
    "weak": "Predicted weak scaling, not measured: the batch grows with the devices",
    "strong": "Predicted strong scaling, not measured: the batch stays",
}


def scaling_table(points: Sequence[ScalingPoint], kind: ScalingKind) -> Table:
    """One row for each number of devices.

    Efficiency is tokens per second and device, over those of the first row that has a plan.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.title = TITLES[kind]
    for name in ("devices", "batch", "step s", "TFLOPS", "efficiency %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    for point in points:
        candidate = point.candidate
        table.add_row(
            count(point.world_size),
            count(point.global_batch_size),
            seconds(candidate.step_seconds if candidate else None),
            tflops(candidate.model_flops_per_second_per_device if candidate else None),
            percent(point.efficiency),
            LayoutCell(layout(candidate)) if candidate else "no plan fits",
        )
    return table


def scaling_document(points: Sequence[ScalingPoint], kind: ScalingKind) -> dict[str, object]:
    return {
        "kind": kind,
        "points": [
            {
                "world_size": point.world_size,
                "global_batch_size": point.global_batch_size,
                "layout": layout(point.candidate) if point.candidate else None,
                "predicted_step_seconds": point.candidate.step_seconds if point.candidate else None,
                "predicted_efficiency_percent": None if point.efficiency is None else 100 * point.efficiency,
            }
            for point in points
        ],
    }
