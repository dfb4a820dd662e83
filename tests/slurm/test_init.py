"""`trisweep init` on a machine that submits to Slurm: the cluster's file says what Slurm says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conf.compose.load import load_cluster
from conf.folders import further_folders
from conf.overrides import Overrides
from launcher.where import compose_for_slurm

pytestmark = pytest.mark.slurm
TRISWEEP = str(Path(sys.executable).with_name("trisweep"))


def test_partition_devices_and_types_are_those_of_slurm(slurm_cluster: Path, tmp_path: Path) -> None:
    command = [TRISWEEP, "init", "--name", "ours", "--partition", "urgent"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "trisweep doctor cluster=ours" in done.stdout
    with further_folders([tmp_path / "config"]):
        found = load_cluster("ours")
        assert (found.num_nodes, found.devices_per_node, found.device.name) == (2, 8, "A100-80GB-SXM")
        assert found.links[-1].num_devices == found.num_devices
        slurm = compose_for_slurm(Overrides.parse(["cluster=ours"])).settings.slurm
        assert (slurm.partition, slurm.gpu_type, slurm.gpu_request) == ("urgent", "a100", "gpus-per-node")
