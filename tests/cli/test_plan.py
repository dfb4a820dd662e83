"""`trisweep plan` of a sweep; its searches are in test_search."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command


def test_cfg_prints_the_composed_configuration(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("plan", "175b", "parallel.tensor_parallel_size=8", "--cfg", cwd=tmp_path)
    assert done.returncode == 0
    assert "tensor_parallel_size: 8" in done.stdout
    assert "hidden_size: 12288" in done.stdout


def test_cfg_prints_no_password(tmp_path: Path, trisweep: Command) -> None:
    address = "tracking.uri=https://ada:secret@runs.example"
    done = trisweep("plan", "smoke", "tracking=server", address, "--cfg", cwd=tmp_path)
    assert "uri: https://***@runs.example" in done.stdout
    assert "secret" not in done.stdout
