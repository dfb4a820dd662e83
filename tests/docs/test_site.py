"""The documentation as a site, with the pages that are made of the code: its links lead somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.making import keys
from tests.docs.documented import PAGES

ROOT = Path(__file__).parents[2]


def test_every_page_names_its_reader_in_its_first_sentence() -> None:
    by_hand = [
        path for path in PAGES if path.name != "README.md" and not path.read_text().startswith("<!-- Written by")
    ]
    openings = {path.name: path.read_text().removeprefix("---").rpartition("\n---\n")[2][:120] for path in by_hand}
    assert [name for name, opening in openings.items() if "\n\nThis page is for " not in opening] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "parallel.tensor_parallel_size" in (tmp_path / "reference" / "keys.html").read_text()
    assert "trisweep diagnose" in (tmp_path / "reference" / "commands.html").read_text()
    front = (tmp_path / "index.html").read_text()
    assert 'src="https://' not in front
    assert 'rel="stylesheet" href="https://' not in front


def test_every_key_of_the_configuration_says_what_it_means() -> None:
    rows = [line for line in keys.page().splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |")] == []
