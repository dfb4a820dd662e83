"""Tables of a page that are made anew, each between its pair of comments: `<!-- NAME: ... -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

MARKED = re.compile(r"(<!-- (\w+): [^>]*-->)\n.*?(<!-- end -->)", re.DOTALL)


def with_tables(text: str, tables: Mapping[str, Callable[[], Iterator[str]]]) -> str:
    """The page with the lines of every marked table replaced by those that its function gives today."""
    return MARKED.sub(lambda found: "\n".join((found[1], *tables[found[2]](), found[3])), text)
