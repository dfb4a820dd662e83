"""Those scenarios of `make chaos` that are short: nothing is lost, nothing runs twice, and every outcome is right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import run
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.scenario import CATALOGUE

pytestmark = pytest.mark.slurm


SHORT = ("answer-of-sbatch-lost", "memory-of-a-device-met", "files-torn", "commands-race", "no-hard-links")


@pytest.mark.parametrize("name", SHORT)
def test_a_sweep_survives(slurm_cluster: Path, tmp_path: Path, name: str) -> None:
    link, path = os.link, os.environ["PATH"]
    found = run(CATALOGUE.scenarios[name], tmp_path / "sweep", Cluster(slurm_cluster))
    # Else every test after this one in the same process would run on a harmed machine.
    assert (os.link, os.environ["PATH"]) == (link, path)
    assert found.num_faults
    assert found.is_unharmed, found.note
