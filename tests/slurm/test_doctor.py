"""The doctor on a real Slurm: its job on two nodes, and what it says of a node that cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRISWEEP = Path(sys.executable).with_name("trisweep")
TWO_NODES = ("cluster=local", "cluster.num_nodes=2", "cluster.devices_per_node=2")

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]


def doctor(*arguments: str, cwd: Path, code: int) -> dict[str, Any]:
    command = [str(TRISWEEP), "doctor", *TWO_NODES, *arguments, "--json"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.slow
def test_two_nodes_tell_that_they_share_the_folder_and_how_fast_their_link_is(tmp_path: Path) -> None:
    document = doctor(cwd=tmp_path, code=0)
    assert "problem" not in document["counts"]
    ranks = document["nodes"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert len({rank["token"] for rank in ranks}) == 1
    assert all(rank["backend"] == "gloo" and rank["link_bandwidth_bytes_per_second"] > 0 for rank in ranks)
    names = {finding["name"] for finding in document["findings"] if finding["part"] == "nodes"}
    assert names == {"job", "shared folder", "Python", "torch", "devices", "all-reduce"}


@pytest.mark.thorough  # than launcher/doctor
def test_a_python_without_our_packages_is_said_so(tmp_path: Path) -> None:
    document = doctor("slurm.python=/usr/bin/python3", cwd=tmp_path, code=1)
    (job,) = (finding for finding in document["findings"] if finding["part"] == "nodes")
    assert "ModuleNotFoundError" in job["says"]
