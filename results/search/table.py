"""The plans that a search found, as a table for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from results.search.rows import layout, layout_knobs, training_costs
from results.table import Table, breakable, text
from results.terminal.drawing import columns_with_room
from results.terminal.layout_names import names_in_short
from results.units import count, gib, percent, seconds, significant, tflops
from sweeps.planner import Candidate, Training
from sweeps.planner.choosing.choice import Judged
from sweeps.planner.choosing.objectives import ScalingKind, dollars_per_second
from sweeps.planner.choosing.scaling import ScalingPoint

WIDE = 100
FIRST_TO_GO, NEXT_TO_GO = ("TFLOPS", "J/token"), ("MFU %", "hours", "80 %")
"""Columns without which a narrow terminal can do, in this order."""
LEAST_LAYOUT = 24
"""The characters that a layout has at least: it breaks at its dashes, but not into single words."""

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
    """The best plans, best first. TFLOPS are model FLOPs per device; an exclamation mark follows the memory of plans
    that nearly fill it.

    Args:
        title: what they are.
        several_places: clusters or numbers of devices to choose among were offered.
    """
    rows = [_cells(candidate, training) for candidate in best]
    return _table(title, best, _columns(best, training, several_places), rows)


def judged_table(shown: Sequence[Judged], training: Training, title: str, *, several_places: bool, width: int) -> Table:
    """The same with the interval in which four measurements of five are expected.

    Args:
        width: columns of the terminal; on a narrow one, what follows from other columns makes room for the layouts.
    """
    best = [judged.candidate for judged in shown]
    columns = _columns(best, training, several_places)
    columns.insert(columns.index("step s") + 1, "80 %")
    if width < WIDE:
        columns = [name for name in columns if name not in FIRST_TO_GO]
    rows = []
    for judged in shown:
        cells = _cells(judged.candidate, training)
        cells["80 %"] = f"{seconds(judged.interval.low_seconds)}-{seconds(judged.interval.high_seconds)}"
        rows.append(cells)
    cells_of = {name: [cells[name] for cells in rows] for name in columns}
    kept = columns_with_room(cells_of, NEXT_TO_GO, width - len("## ") - LEAST_LAYOUT)
    return _table(title, best, list(kept), rows)


def _table(
    title: str, best: Sequence[Candidate], columns: Sequence[str], figures: Sequence[Mapping[str, str]]
) -> Table:
    names = names_in_short(map(layout_knobs, best))
    rows = tuple(
        (text(position), breakable(layout(candidate)), *(text(cells[name]) for name in columns))
        for position, (candidate, cells) in enumerate(zip(best, figures, strict=True), start=1)
    )
    return Table(
        ("#", "layout", *columns),
        rows,
        frozenset(("#", *columns)),
        title=f"Predicted, not measured: {title}",
        caption=f"Names: {names}." if names else "",
    )


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
    space, costs = candidate.space, training_costs(candidate, training)
    return {
        "devices": f"{space.world_size:,} {space.setting.cluster.name}",
        "step s": seconds(candidate.step_seconds),
        "TFLOPS": tflops(candidate.model_flops_per_second_per_device),
        "MFU %": percent(candidate.model_flops_utilization),
        "GiB": gib(candidate.peak_memory_bytes) + ("!" if candidate.is_tight else ""),
        "$/Mtoken": significant(costs["predicted_dollars_per_million_tokens"]),
        "J/token": significant(costs["predicted_joules_per_token"]),
        "hours": significant(costs["predicted_hours"]),
        "$": count(costs["predicted_dollars"]),
    }


def scaling_table(points: Sequence[ScalingPoint], kind: ScalingKind) -> Table:
    """One row for each number of devices.

    Efficiency is tokens per second and device, over those of the first row that has a plan.
    """
    numeric = ("devices", "batch", "step s", "TFLOPS", "efficiency %")
    rows = []
    for point in points:
        candidate = point.candidate
        figures = (
            count(point.world_size),
            count(point.global_batch_size),
            seconds(candidate.step_seconds if candidate else None),
            tflops(candidate.model_flops_per_second_per_device if candidate else None),
            percent(point.efficiency),
        )
        rows.append((*map(text, figures), breakable(layout(candidate)) if candidate else text("no plan fits")))
    return Table((*numeric, "layout"), tuple(rows), frozenset(numeric), title=TITLES[kind])


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
