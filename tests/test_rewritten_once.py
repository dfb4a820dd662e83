"""What is rewritten before workers start is what pytest takes, and nothing is rewritten twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion.rewrite import _read_pyc

from tests.rewritten_once import kept_at, rewrite_all


def test_tests_are_rewritten_once_and_again_when_they_change(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    files = [tmp_path / "test_one.py", tmp_path / "two" / "conftest.py"]
    files[1].parent.mkdir()
    for path in files:
        path.write_text("def test_it():\n    one = 1\n    assert one == 2\n")
    rewrite_all(pytestconfig, tmp_path)
    for path in files:
        code = _read_pyc(path, kept_at(path))
        assert code is not None
        assert "@pytest_ar" in code.co_names
    before = [kept_at(path).stat().st_ino for path in files]
    files[0].write_text("def test_it():\n    pass\n")
    rewrite_all(pytestconfig, tmp_path)
    now = [kept_at(path).stat().st_ino for path in files]
    assert [old == new for old, new in zip(before, now, strict=True)] == [False, True]
