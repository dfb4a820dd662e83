"""The names that SKILL.md has an assistant look for are those that the documents hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.docs.documented import ROOT

NAME = re.compile(r"`([a-z][a-z_.]+)`")
SKILL = (ROOT / "SKILL.md").read_text()


def names_in(heading: str) -> set[str]:
    """The names of one part of the page, without those of commands, options and files."""
    part = SKILL.split(heading)[1].split("\n## ")[0]
    return {name for name in NAME.findall(part) if not name.endswith(".md")}


def keys_of(document: object) -> set[str]:
    if isinstance(document, dict):
        return set(document).union(*map(keys_of, document.values()))
    return set().union(*map(keys_of, document)) if isinstance(document, list) else set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heading", "command"),
    [
        ("## 2. Plan", ("plan", "model=llama-3.1-70b", "cluster=selene", "--devices", "32", "--search", "--top", "2")),
        ("## 4. Follow", ("status", "smoke")),
        ("## 5. Results", ("report", "smoke")),
    ],
)
def test_every_name_that_the_page_mentions_is_in_the_document(
    heading: str,
    command: tuple[str, ...],
    finished: Path,
    trisweep: Command,
) -> None:
    done = trisweep(*command, "--json", cwd=finished)
    keys = keys_of(json.loads(done.stdout))
    named = {part for name in names_in(heading) for part in name.split(".")}
    assert named - keys == set()
    assert len(named) > 2
