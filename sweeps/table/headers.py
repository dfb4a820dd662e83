"""Columns of a table that nothing reads, and the ones that may be meant.

Without a word, a column that is spelled in another way would mean the default in every row.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from conf.nearest import listed
from sweeps.table.cells import REMARK_COLUMNS
from sweeps.table.configuration import DEVICE_COLUMNS, MEASURED_COLUMNS, OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from sweeps.table.file import PREDICTED_COLUMNS
from sweeps.table.unread import NAMED_OTHERWISE, UNREAD_COLUMNS

OWN_WORDS = {
    "framework": "implementation",
    "step_s": "iter_time_s",
    "step_seconds": "iter_time_s",
    "step_time_s": "iter_time_s",
    "trainer": "implementation",
}
"""What other pages of this package, and other people, call what a column of published tables says."""
REMARKS_ALONE = ("arxiv", "assumed", "confirmed", "schedule")
"""Columns beside those of free text that a remark or a score reads."""
NAMES = (*OPTIONAL_COLUMNS, *MEASURED_COLUMNS)
READ = {
    *REQUIRED_COLUMNS,
    *DEVICE_COLUMNS,
    *NAMES,
    *REMARK_COLUMNS,
    *REMARKS_ALONE,
    *UNREAD_COLUMNS,
    *PREDICTED_COLUMNS,
}
MOST_NAMED = 6
CUTOFF = 0.7


def unread_sentence(columns: Sequence[str]) -> str | None:
    """A sentence that names the columns that nothing reads, those first that may mean another; None without any."""
    meant = {name: _meant(name, columns) for name in columns if name and name not in READ}
    named = [f"{name} (did you mean {other}?)" for name, other in meant.items() if other]
    named += [name for name, other in meant.items() if not other]
    return f"Columns that were not read: {listed(named, MOST_NAMED)}." if named else None


def _meant(name: str, columns: Sequence[str]) -> str | None:
    """The column, of those that the table lacks, that is meant by another word for it or by a misspelt one."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if plain in READ:
        return plain if plain not in columns else None
    other = OWN_WORDS.get(plain) or NAMED_OTHERWISE.get(plain)
    if other is not None:
        return other if other not in columns else None
    lacking = [each for each in NAMES if each not in columns]
    return next(iter(difflib.get_close_matches(plain, lacking, n=1, cutoff=CUTOFF)), None)
