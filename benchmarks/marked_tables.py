"""Tables of Markdown, and a page's that are made anew, each between `<!-- NAME: ... -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

MARKED = re.compile(r"(<!-- (\w+): [^>]*-->)\n.*?(<!-- end -->)", re.DOTALL)


def with_tables(text: str, tables: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """The page with the lines of every marked table replaced by those that its function gives today."""
    return MARKED.sub(lambda found: "\n".join((found[1], *tables[found[2]](), found[3])), text)


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[str]], rule: str = "---") -> list[str]:
    """The lines of a table; `rule` is below every column but the first, `---:` where they are of numbers."""
    # A bar inside a cell would end it.
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [_line(row) for row in (columns, ["---", *[rule] * (len(columns) - 1)], *escaped)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
