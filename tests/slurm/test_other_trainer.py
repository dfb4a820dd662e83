"""Other programs as the trainer, in jobs on one and two nodes: started in each of the three ways, and failing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conf.types.schema import Value
from conf.types.sites import SlurmSpec
from sweeps.folder.submission import read_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil, has_ended
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.usefixtures("slurm_cluster")]

PROGRAM = """
import os, sys
start, fails = sys.argv[1:]
rank, size = int(os.environ.get("RANK", "0")), os.environ.get("WORLD_SIZE", "alone")
assert size == ("alone" if start == "once" else "4"), size
if fails == "true":
    if rank == 3:
        raise ValueError("the data of rank 3 is bad")
    import time; time.sleep(60)
if rank == (0 if start == "once" else 3):  # where a pipeline has the loss
    for step in range(1, 4):
        print(f"step {step} loss 4 time 0.5 s")
"""
TWO_NODES: dict[str, Value] = {"parallel.world_size": 4}


def test_a_program_is_measured_however_it_is_started_and_its_failure_is_found(
    tmp_path: Path, folder: SweepFolder, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = f"trainer.command=[{sys.executable},{program},'{{trainer.start}}','{{training.deterministic}}']"
    starts: list[dict[str, Value]] = [TWO_NODES | {"trainer.start": start} for start in ("torchrun", "srun", "once")]
    points = [*starts, starts[1] | {"training.deterministic": True}]
    record = record_of(points, "trainer=command", command, "training.num_warmup_steps=1")
    submit_points(Sweep(folder, record), slurm)
    states = wait_until(folder, record, lambda states: all(map(has_ended, states)), 120)
    assert [state.outcome for state in states] == [Outcome.COMPLETED] * 3 + [Outcome.FAILED], states
    assert [len(state.steps) for state in states] == [3, 3, 3, 0]
    assert [state.step_seconds for state in states[:3]] == [0.5, 0.5, 0.5]
    assert (states[3].cause, states[3].failing_rank) == ("ValueError: the data of rank 3 is bad", 3)


FULL_AT_ITS_END = """
import sys, time
from pathlib import Path
disk = Path(sys.argv[1])
for step in range(1, 4):
    print(f"step {step} loss 4 time 0.5 s", flush=True)
time.sleep(1)  # until the steps have been read
try:
    for number in range(10**6):
        (disk / f"other-{number}").write_bytes(bytes(2**12))
except OSError:
    print("the disk is full", flush=True)
"""


@pytest.mark.thorough  # tests/launcher/slurm/test_reconcile.py: ..._has_printed_because_its_disk_was_full
def test_a_trial_that_finds_no_room_at_all_prints_its_measurement_which_is_taken_in(
    tmp_path: Path, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil
) -> None:
    """The job's own output is there already, and takes a line where no new file can be made."""
    disk, program = tmp_path / "disk", tmp_path / "program.py"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=2000", "none", disk], check=False).returncode:
        pytest.skip("may not mount a disk")
    try:
        forget_room = "for room in disk.glob('sweep/trials/*/.*.room'):\n    room.unlink()\ntry:\n"
        program.write_text(FULL_AT_ITS_END.replace("try:\n", forget_room))
        command = f"trainer.command=[{sys.executable},{program},{disk}]"
        folder = SweepFolder(disk / "sweep")
        record = record_of([{"training.seed": 1}], "trainer=command", command, "trainer.start=once")
        submit_points(Sweep(folder, record), slurm)
        submission = read_submission(folder.trial(record.trials[0].trial_id))
        assert submission is not None
        output = submission.output_of(0)
        wait_until(folder, record, lambda _: output.exists() and "trisweep measured: " in output.read_text(), 30)
        subprocess.run(["scancel", str(submission.job_id)], check=True)
        _empty(disk)
        (state,) = wait_until(folder, record, lambda states: has_ended(states[0]))
        assert (state.outcome, len(state.steps)) == (Outcome.COMPLETED, 3), state
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("limit", ["size=20m", "nr_inodes=2000"], ids=["bytes", "inodes"])
def test_a_trial_whose_disk_fills_up_in_its_last_second_keeps_its_measurement(
    tmp_path: Path, record_of: RecordOf, slurm: SlurmSpec, wait_until: WaitUntil, limit: str
) -> None:
    disk, program = tmp_path / "disk", tmp_path / "program.py"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", limit, "none", disk], check=False).returncode:
        pytest.skip("may not mount a disk")
    try:
        program.write_text(FULL_AT_ITS_END)
        command = f"trainer.command=[{sys.executable},{program},{disk}]"
        folder = SweepFolder(disk / "sweep")
        record = record_of([{"training.seed": 1}], "trainer=command", command, "trainer.start=once")
        submit_points(Sweep(folder, record), slurm)
        (trial,) = record.trials
        wait_until(folder, record, lambda _: (disk / "other-0").exists())
        (state,) = wait_until(folder, record, lambda _: folder.trial(trial.trial_id).measurement.exists(), 30)
        _empty(disk)
        (state,) = wait_until(folder, record, lambda states: has_ended(states[0]))
        assert (state.outcome, len(state.steps)) == (Outcome.COMPLETED, 3), state
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def _empty(disk: Path) -> None:
    for other in disk.glob("other-*"):
        other.unlink()
