"""`trisweep rehearse`, beside what results/rehearsal_table shows of it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command


def test_the_former_name_of_rehearse_says_what_to_use(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("dry-run", "175b", "--format", "json", cwd=tmp_path)
    assert done.returncode == 2
    assert "Use `trisweep rehearse`" in done.stderr
