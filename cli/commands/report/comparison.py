"""`trisweep report A B`: two sweeps beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.command_line.started_sweep import started_sweep
from cli.output.console import console, leave_stdout_to_json, print_json, shown_path
from conf.errors import UsageError

if TYPE_CHECKING:
    from results.comparison import ComparedPoint


def second_sweep(texts: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """The word among the overrides that is none, which names the other sweep, and the overrides.

    Raises:
        UsageError: there are several such words.
    """
    words = [text for text in texts or () if "=" not in text and not text.startswith(("+", "~"))]
    if len(words) > 1:
        raise UsageError(f"{', '.join(words)}: two sweeps can be compared, and more were named", "Name two.")
    return (words[0] if words else None), [text for text in texts or () if text not in words]


def compare(first: str, second: str, overrides: Sequence[str], out: Path | None, *, as_json: bool) -> None:
    """Write the page of two sweeps, and say in one sentence what it comes to.

    Raises:
        UsageError: a name is no sweep's, or both are the same one's.
    """
    from launcher.state import reconcile
    from results.comparison import compare_sweeps
    from results.report.comparison_page import finding, sides_of, write_comparison
    from sweeps.sweep import Sweep

    if as_json:
        leave_stdout_to_json()
    sweeps = [Sweep.stored_in(started_sweep(name, overrides)[0]) for name in (first, second)]
    before, after = sides_of([(sweep, reconcile(sweep.read())) for sweep in sweeps])
    paths, both = write_comparison(before, after, out), compare_sweeps(before.results, after.results)
    console.print(f"A: {before.name}\nB: {after.name}\n{finding(both)}")
    console.print(f"Comparison: {shown_path(paths.html)}\n            {shown_path(paths.markdown)}")
    if as_json:
        files = {"html": str(paths.html), "markdown": str(paths.markdown)}
        content = {"before": before.name, "after": after.name, "files": files}
        only = {"only_before": both.only_before, "only_after": both.only_after}
        print_json("comparison", content | {"points": [_plain(point) for point in both.points]} | only)


def _plain(point: ComparedPoint) -> dict[str, Any]:
    if point.why_not:
        return {"layout": point.label, "not_comparable_because": point.why_not}
    low, high = point.ratio_bounds
    return {"layout": point.label, "ratio": point.ratio, "ratio_low": low, "ratio_high": high}
