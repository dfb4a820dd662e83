"""Trials in a container of a real runtime, Charliecloud, on one and two nodes."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

import pytest

from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil, has_ended
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]

ONLY_INSIDE = Path("/only-in-the-image")
PROGRAM = f"""
import os, pathlib
assert pathlib.Path("{ONLY_INSIDE}").exists()
if os.environ.get("RANK") == "3":
    for step in range(1, 4):
        print(f"step {{step}} loss 4 time 0.5 s")
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root folder of its own, with one file that the machine has not, and the machine's programs mounted into it."""
    folder = tmp_path / "image"
    for name in ("dev", "proc", "sys", "etc", "mnt", *HOSTS):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", ONLY_INSIDE.name):
        (folder / name).touch()
    return folder


HOSTS = sorted({"usr", "tmp", *(Path(path).resolve().parts[1] for path in (sys.prefix, sys.base_prefix, __file__))})


def test_a_trial_is_measured_inside_its_container(
    tmp_path: Path, image: Path, folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    points: list[dict[str, Value]] = [{"parallel.world_size": 4, "trainer.start": "srun"}]
    command = ("trainer=command", f"trainer.command=[{sys.executable},{program}]", "training.num_warmup_steps=1")
    record = record_of([*points, {"parallel.world_size": 1, "training.num_steps": 2}], *command)
    inside = {
        "container": "charliecloud",
        "container_image": str(image),
        "container_mounts": tuple(f"/{name}" for name in HOSTS),
        "python": sys.executable,
        "environment": {"USER": getpass.getuser()},  # Charliecloud asks for it
    }
    submit_points(Sweep(folder, record), slurm.model_copy(update=inside))
    states = wait_until(folder, record, lambda states: all(map(has_ended, states)), 120)
    assert [state.outcome for state in states] == [Outcome.COMPLETED, Outcome.FAILED], states
    assert [len(state.steps) for state in states] == [3, 0], "the second one prints no step"
