"""A sweep without a file, as a job array of Slurm's."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.slurm.test_commands import trisweep

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]

SITE = "defaults: [local, _self_]\nname: site\nnum_nodes: 4\ndevices_per_node: 2\n"
PROGRAM = "import sys\nlr = float(sys.argv[1])\nprint(f'step 1 loss: {(lr - 0.1) ** 2 + 1:.4f}')\n"
PATIENCE_SECONDS = 120


def test_a_script_is_swept_as_one_job_array_and_goes_on_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(PROGRAM)
    (tmp_path / "mine" / "cluster").mkdir(parents=True)
    (tmp_path / "mine" / "cluster" / "site.yaml").write_text(SITE)
    own = ("--config-dir", "mine")
    command = ("--command", f"{sys.executable} fit.py {{lr}}", "lr=0.05,0.1,0.4", "cluster=site", "gpus=1", "minutes=2")
    submitted = trisweep("sweep", *command, *own, cwd=tmp_path)
    assert "3 trials of 1 x 1 tasks" in submitted
    assert submitted.count("  job ") == 1
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "3 COMPLETED" not in (said := trisweep("status", "fit", "cluster=site", *own, cwd=tmp_path)):
        assert time.monotonic() < deadline, said
        time.sleep(2)
    assert "0 trials submitted" in trisweep("sweep", "fit", *own, cwd=tmp_path)
    said = " ".join(trisweep("report", "fit", *own, cwd=tmp_path).split())
    assert "lr=0.1 reached the lowest loss, 1.000, against 1.002 to 1.090 of the 2 others" in said
