"""Writing files of runs into a folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.made_up import Write, writing_into


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writing_into(tmp_path)
