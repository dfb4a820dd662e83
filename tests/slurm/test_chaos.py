"""Those scenarios of `make chaos` that are short: nothing is lost, nothing runs twice, and every outcome is right."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.catalogue import CATALOGUE
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.repetition import run

pytestmark = pytest.mark.slurm


SHORT = {
    "answer-of-sbatch-lost": 2,
    "memory-of-a-device-met": 2,
    "files-torn": 4,
    "commands-race": 3,
    "no-hard-links": 3,
}
"""Each with as few trials as show its harm, of both shapes; `make chaos` has more."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SHORT)
def test_a_sweep_survives(slurm_cluster: Path, tmp_path: Path, name: str) -> None:
    link, path = os.link, os.environ["PATH"]
    scenario = replace(CATALOGUE[name], num_trials=SHORT[name])
    found = run(scenario, tmp_path / "sweep", Cluster(slurm_cluster))
    # Else every test after this one in the same process would run on a harmed machine.
    assert (os.link, os.environ["PATH"]) == (link, path)
    assert found.num_faults
    assert found.is_unharmed, found.note
