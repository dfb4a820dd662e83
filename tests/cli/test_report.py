"""`trisweep report` of a sweep that has been measured."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import Command


def test_a_corrupt_measurement_is_put_aside_and_the_rest_is_reported(
    finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    victim = next((copy / "runs" / "smoke-local" / "trials").glob("tp1-pp1-dp1*")) / "measurement.json"
    victim.write_text('{"outcome": "COMPL')
    done = trisweep("report", "smoke", cwd=copy)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(list(victim.parent.glob("measurement.corrupt-*.json"))) == 1
    assert done.stdout.count("COMPLETED") == 4
    text = (copy / "runs" / "smoke-local" / "report.md").read_text()
    assert "corrupt" in text
