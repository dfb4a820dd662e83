"""Other programs as the trainer, in jobs on one and two nodes: started in each of the three ways, and failing."""

from __future__ import annotations

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
from train_core.measurement import Outcome

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
