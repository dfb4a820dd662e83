"""The commands that README and the pages of docs/ show, as a reader would copy them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SKILL.md",
    ROOT / "AGENTS.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
SHOWN = re.compile(r"^ *(?:\$ )?(?:\.venv/bin/)?((?:trisweep|make) .*)$")
"""A line of a block of code that begins with a command, with or without a prompt."""

STANDS_FOR = {
    "cluster=NAME": "cluster=frontier",
    "SITE": "frontier",
    "NAME": "175b",
    "PREFIX": "corpus",
    "TRIAL": "tp8-pp8",
}
"""What a reader puts in the place of these words."""

OF_ITS_OWN_TEST = "my-sweep"
"""Begins the names of sweeps that a page has the reader write; test_my_own_trainer and test_stages run them."""


def shown_commands(pages: Iterable[Path] = PAGES) -> list[str]:
    """Each command once, its comment left out and its continued lines joined, placeholders filled in."""
    found = dict.fromkeys(command for page in pages for command in _on(page))
    return [command for command in found if OF_ITS_OWN_TEST not in command]


def _on(page: Path) -> Iterator[str]:
    text = re.sub(r"\\\n\s*", "", page.read_text())
    for line in text.splitlines():
        if found := SHOWN.match(line):
            yield _filled(found[1])


def _filled(line: str) -> str:
    """The command up to its comment, or up to the pipe that its output goes into."""
    words = shlex.split(line, comments=True)
    words = words[: words.index("|")] if "|" in words else words
    text = shlex.join(words)
    for name, value in STANDS_FOR.items():
        text = re.sub(rf"(?<![\w-]){name}(?![\w-])", value, text)
    return text
