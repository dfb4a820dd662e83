"""`trisweep doctor` where there is no Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.mark.slow
def test_a_machine_without_slurm_is_ready_and_says_so(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("doctor", cwd=tmp_path, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert "there is no sbatch on the PATH" in " ".join(done.stdout.split())
    assert "Ready." in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached_is_a_problem(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("doctor", "cluster=frontier", "--json", cwd=tmp_path)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["document"], document["counts"]["problem"]) == ("doctor", 1)
    assert "Run this on a Slurm login node" in done.stdout
    assert document["findings"][-1]["says"] == "not submitted before this is solved: tools"
