"""The plans that a search found, as a table for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from results.search.rows import Row, layout, layout_knobs, search_row
from results.terminal.layout_names import LayoutCell, names_in_short
from results.units import count, gib, percent, seconds, significant, tflops
from sweeps.planner import Candidate, Training
from sweeps.planner.choosing.choice import Judged
from sweeps.planner.choosing.objectives import ScalingKind, dollars_per_second
from sweeps.planner.choosing.scaling import ScalingPoint

WIDE = 100

TITLES: dict[ScalingKind, str] = {
    "weak": "Predicted weak scaling, not measured: the batch grows with the devices",
    "strong": "Predicted strong scaling, not measured: the batch stays",
}


def search_table(
    best: Sequence[Candidate],
    training: Training,
    title: str,
    *,
    several_places: bool,
) -> Table:
    """The best plans, best first. TFLOPS are model FLOPs per device.

    Args:
        title: what they are.
        several_places: clusters or numbers of devices to choose among were offered.
    """
    table = _empty(title, best)
    columns = _columns(best, training, several_places)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for position, candidate in enumerate(best, start=1):
        cells = _cells(candidate, training)
        table.add_row(str(position), LayoutCell(layout(candidate)), *(cells[name] for name in columns))
    return table


def judged_table(shown: Sequence[Judged], training: Training, title: str, *, several_places: bool, width: int) -> Table:
    """The same with the interval in which four measurements of five are expected; an exclamation mark follows the
    memory of plans that nearly fill it.

    Args:
        width: columns of the terminal; on a narrow one, what follows from other columns makes room for the layouts.
    """
    table = _empty(title, [judged.candidate for judged in shown])
    columns = _columns([judged.candidate for judged in shown], training, several_places)
    columns.insert(columns.index("step s") + 1, "80 %")
    if width < WIDE:
        columns = [name for name in columns if name not in ("TFLOPS", "J/token")]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for position, judged in enumerate(shown, start=1):
        cells = _cells(judged.candidate, training)
        cells["80 %"] = f"{seconds(judged.interval.low_seconds)}-{seconds(judged.interval.high_seconds)}"
        cells["GiB"] += "!" if judged.is_nearly_full else ""
        table.add_row(str(position), LayoutCell(layout(judged.candidate)), *(cells[name] for name in columns))
    return table


def _empty(title: str, shown: Sequence[Candidate]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", caption_justify="left")
    table.title = f"Predicted, not measured: {title}"
    if names := names_in_short(map(layout_knobs, shown)):
        table.caption = f"Names: {names}."
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("layout", overflow="fold")
    return table


def _columns(best: Sequence[Candidate], training: Training, several_places: bool) -> list[str]:
    """The columns that say something about these plans.

    Devices are shown only where there was a choice, and money only where every plan has a price. Costs are those of the
    whole training where its length is known, and of a token otherwise.
    """
    money = all(dollars_per_second(candidate.space) is not None for candidate in best)
    names = ["devices"] if several_places else []
    names += ["step s", "TFLOPS", "MFU %", "GiB"]
    if training.num_steps:
        return names + ["hours"] + (["$"] if money else [])
    return names + (["$/Mtoken"] if money else []) + ["J/token"]


def _cells(candidate: Candidate, training: Training) -> dict[str, str]:
    space, row = candidate.space, search_row(candidate, training)
    return {
        "devices": f"{space.world_size:,} {space.setting.cluster.name}",
        "step s": seconds(candidate.step_seconds),
        "TFLOPS": tflops(candidate.model_flops_per_second_per_device),
        "MFU %": percent(candidate.model_flops_utilization),
        "GiB": gib(candidate.peak_memory_bytes),
        "$/Mtoken": significant(_number(row, "predicted_dollars_per_million_tokens")),
        "J/token": significant(_number(row, "predicted_joules_per_token")),
        "hours": significant(_number(row, "predicted_hours")),
        "$": count(_number(row, "predicted_dollars")),
    }


def _number(row: Row, name: str) -> float | None:
    value = row[name]
    assert value is None or isinstance(value, float)
    return value


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
