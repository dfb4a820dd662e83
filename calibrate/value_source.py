"""The `source` of a group of constants: a clause for every calibration that set some of them, and the first source.

`matmul: fitted to 9 trials ...; link: measured by trisweep calibrate, ...; before: assumptions`
"""

from __future__ import annotations

import re
from collections.abc import Sequence

BEFORE = "; before: "
CLAUSE = re.compile(r"([a-z_]+(?:, [a-z_]+)*): (.*)")


def source_after(source: str, names: Sequence[str], how: str) -> str:
    """`source` once a calibration has set `names`: earlier clauses lose these names, the original source stays."""
    told, found, original = source.rpartition(BEFORE)
    clauses = [clause for part in told.split("; ") if (clause := _without(part, names))] if found else []
    return "; ".join([f"{', '.join(names)}: {how}", *clauses]) + BEFORE + original


def _without(clause: str, names: Sequence[str]) -> str:
    """The clause of the names that are left; empty when none is."""
    match = CLAUSE.fullmatch(clause)
    if match is None:
        return clause
    left = [name for name in match.group(1).split(", ") if name not in names]
    return f"{', '.join(left)}: {match.group(2)}" if left else ""
