"""`trisweep report A B`: two sweeps beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.command_line.arguments import composed
from cli.output.console import console, counted, leave_stdout_to_json, print_json, shown_path
from conf.errors import UsageError

MOST_NAMED = 8

if TYPE_CHECKING:
    from results.comparison import ComparedPoint
    from sweeps.trial import SweepFolder


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
    from launcher.state import reconciled
    from results.comparison import compared
    from results.report.comparison_page import finding, sides_of, write_comparison
    from sweeps.sweep import Sweep

    if as_json:
        leave_stdout_to_json()
    sweeps = [Sweep.stored_in(folder_called(name, overrides)) for name in (first, second)]
    before, after = sides_of([(sweep, reconciled(sweep.read())) for sweep in sweeps])
    paths, both = write_comparison(before, after, out), compared(before.results, after.results)
    console.print(f"A: {before.name}\nB: {after.name}\n{finding(both)}")
    console.print(f"Comparison: {shown_path(paths.html)}\n            {shown_path(paths.markdown)}")
    if as_json:
        files = {"html": str(paths.html), "markdown": str(paths.markdown)}
        content = {"before": before.name, "after": after.name, "files": files}
        only = {"only_before": both.only_before, "only_after": both.only_after}
        print_json("comparison", content | {"points": [_plain(point) for point in both.points]} | only)


def folder_called(name: str, overrides: Sequence[str]) -> SweepFolder:
    """The folder of a sweep: a path, a folder of output_dir, or the name of a sweep that was started.

    Raises:
        UsageError: there is none.
    """
    from launcher.where import existing_folder
    from sweeps.trial import RECORD, SweepFolder

    for path in (Path(name), Path(composed(None, overrides).settings.output_dir) / name):
        if (path / RECORD).is_file():
            return SweepFolder(path)
    if inside := _sweeps_inside(Path(name)):
        raise UsageError(f"{name} is no sweep, but holds {counted(len(inside), 'sweep')}", f"Name {_one_of(inside)}.")
    if "/" in name or name in (".", ".."):
        raise UsageError(f"{name} holds no sweep", "Name a folder with a sweep.json, or a sweep that was started.")
    return existing_folder(composed(name, overrides))


def _sweeps_inside(folder: Path) -> list[str]:
    """The folders of sweeps in an output_dir."""
    from sweeps.trial import RECORD

    return sorted(str(path.parent) for path in folder.glob(f"*/{RECORD}"))


def _one_of(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    more = f" ({len(names) - MOST_NAMED} more)" if len(names) > MOST_NAMED else ""
    return f"one of them: {', '.join(names[:MOST_NAMED])}{more}"


def _plain(point: ComparedPoint) -> dict[str, Any]:
    if point.why_not:
        return {"layout": point.label, "not_comparable_because": point.why_not}
    low, high = point.spread
    return {"layout": point.label, "ratio": point.ratio, "ratio_low": low, "ratio_high": high}
