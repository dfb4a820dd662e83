"""A node whose installation is broken, on a real Slurm: the pre-flight names it, and the trial trains elsewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from conf.types.sites import SlurmSpec
from launcher.control.attempts import bad_nodes
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import SCRIPT, WaitUntil, has_ended
from train_core.trial.measurement import Fault, Outcome

pytestmark = [pytest.mark.slurm]
BAD = "node1"
"""The node that an idle cluster hands out first."""


@pytest.fixture
def without_torch(slurm_cluster: Path) -> Iterator[None]:
    """Its daemon, and so its jobs, see an empty folder where torch is installed."""
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    torch = Path(found.origin).parent
    if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", torch], check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    pid_file = slurm_cluster / "run" / f"slurmd.{BAD}.pid"
    _end(pid_file)
    script = f"hostname {BAD} && mount -t tmpfs none {torch} && exec slurmd -N {BAD}"
    subprocess.run(["unshare", "--uts", "--mount", "sh", "-c", script], check=True, timeout=60)
    yield
    _end(pid_file)
    environment = os.environ | {"SLURM_TEST_DIR": str(slurm_cluster)}
    subprocess.run([SCRIPT, "up"], env=environment, capture_output=True, timeout=120, check=True)


def _end(pid_file: Path) -> None:
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGTERM)
    for _ in range(200):
        if not Path(f"/proc/{pid}/exe").exists():
            return
        time.sleep(0.1)


@pytest.mark.usefixtures("without_torch")
def test_a_node_that_is_not_fit_gets_no_training_and_no_further_trial(
    folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    sweep, checked = (
        Sweep(folder, record_of([{"parallel.world_size": 2}], "cluster.devices_per_node=1")),
        slurm.model_copy(update={"preflight": True}),
    )
    submit_points(sweep, checked)
    (failed,) = wait_until(folder, sweep.record, lambda states: has_ended(states[0]), 300)
    assert failed.outcome is Outcome.NODE_FAILED, failed.cause
    assert re.match(rf"pre-flight: rank [01] on {BAD}: ModuleNotFoundError", failed.cause), failed.cause
    assert failed.measurement is not None
    assert (failed.measurement.fault, failed.measurement.nodes) == (Fault.PREFLIGHT, (BAD,))
    assert [bad.name for bad in bad_nodes(sweep.read())] == [BAD]
    assert failed.num_steps_done == 0

    submit_points(sweep, checked)

    (done,) = wait_until(folder, sweep.record, lambda states: states[0].outcome is Outcome.COMPLETED, 300)
    (attempt,) = done.earlier_attempts
    assert attempt.nodes == (BAD,)
    assert done.submission is not None
    assert "pre-flight: the nodes are fit" in done.submission.output_of(0).read_text()
