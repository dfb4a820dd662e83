"""A promise in numbers, and whether it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

LINE_WIDTH = 160


@dataclass(frozen=True)
class Target:
    """One line of the summary.

    Attributes:
        what: the quantity, and the rows or the machine that it is of.
        target: the promise, for people; empty where none was made and the figure is shown for its own sake.
        seen: the figure of this run, for people.
        met: None where nothing was promised, or nothing could be computed.
        missed_by: how far off, for people; empty where the target is met.
    """

    what: str
    target: str
    seen: str
    met: bool | None
    missed_by: str = ""

    @property
    def verdict(self) -> str:
        if self.met is None:
            return "not computed" if self.target else "no target"
        return "met" if self.met else f"missed by {self.missed_by}"


def at_most(what: str, limit: float, seen: float | None, unit: str = "", remark: str = "") -> Target:
    """A target that figures up to `limit` meet."""
    target = f"<= {limit:g}{unit}"
    if seen is None:
        return Target(what, target, "-", None)
    return Target(what, target, _figure_text(seen, unit, remark), seen <= limit, f"{_number(seen - limit)}{unit}")


def at_least(what: str, limit: float, seen: float | None, unit: str = "", remark: str = "") -> Target:
    """A target that figures from `limit` on meet."""
    target = f">= {limit:g}{unit}"
    if seen is None:
        return Target(what, target, "-", None)
    return Target(what, target, _figure_text(seen, unit, remark), seen >= limit, f"{_number(limit - seen)}{unit}")


def within(what: str, wanted: float, margin: float, seen: float, unit: str = "") -> Target:
    """A target that figures from `wanted - margin` to `wanted + margin` meet."""
    off = abs(seen - wanted) - margin
    return Target(what, f"{wanted:g} ± {margin:.3g}{unit}", _figure_text(seen, unit), off <= 0, f"{off:.2f}{unit}")


def figure(what: str, seen: float | None, unit: str = "", remark: str = "") -> Target:
    return Target(what, "", "-" if seen is None else _figure_text(seen, unit, remark), None)


def print_targets(targets: Sequence[Target]) -> None:
    table = empty_table()
    for name in ("what", "target", "seen", "verdict"):
        table.add_column(name, overflow="fold")
    for one in targets:
        table.add_row(one.what, one.target, one.seen, one.verdict, style="yellow" if one.met is False else "")
    print_table(table)


def empty_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def print_table(table: Table) -> None:
    """Print a table; where the output is no terminal, lines are wide."""
    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else LINE_WIDTH
    console.print(table)


def _figure_text(seen: float, unit: str, remark: str = "") -> str:
    return f"{_number(seen)}{unit}" + (f" ({remark})" if remark else "")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"
