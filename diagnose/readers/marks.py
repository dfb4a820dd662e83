"""Lines that tell what happened beside the steps, and why a run may be slow or have ended."""

from __future__ import annotations

import re

from conf.folders import package_content
from diagnose.runs import LogLine, UserRun

KINDS: dict[str, tuple[tuple[str, ...], re.Pattern[str]]] = {
    kind: (tuple(row["words"]), re.compile(row["pattern"]))
    for kind, row in package_content("marks.yaml", __package__).items()
}
"""What each kind of line has in it, looked for first, and the pattern that decides."""
MOST_OF_A_KIND = 1000
WORDS = tuple(dict.fromkeys(word for words, _ in KINDS.values() for word in words))


def kinds_of(text: str) -> list[str]:
    return [
        kind for kind, (words, pattern) in KINDS.items() if any(word in text for word in words) and pattern.search(text)
    ]


def mark(run: UserRun, kind: str, line: LogLine) -> bool:
    """Take a line down, copies of other ranks once; False where there are enough of its kind."""
    lines = run.marks.setdefault(kind, [])
    if len(lines) >= MOST_OF_A_KIND:
        return False
    if not any(known.text == line.text for known in lines[-16:]):
        lines.append(line)
    return True
