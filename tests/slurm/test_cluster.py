"""Several test clusters stand on one machine side by side."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm


def test_a_clusters_database_keeps_its_temporary_tables_to_itself(slurm_cluster: Path) -> None:
    """MariaDB deletes those that it finds where it starts, and with them what a neighbour is just being made of."""
    command = ["mariadb", "--no-defaults", "-uroot", "-S", str(slurm_cluster / "run/mysql.sock"), "-Ne"]
    told = subprocess.run([*command, "SELECT @@tmpdir"], capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()) == slurm_cluster / "tmp"
