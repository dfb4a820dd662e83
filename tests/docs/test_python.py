"""Every line of docs/how-to/python.md gives what the page shows."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # MLflow's own
]


def test_the_page_shows_what_python_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = doctest.testfile(str(ROOT / "docs" / "how-to" / "python.md"), module_relative=False)
    assert done.attempted > 15
    assert done.failed == 0
