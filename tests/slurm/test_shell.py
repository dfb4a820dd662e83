"""What a person's shell says to Slurm's tools, and jobs without the environment of their submission."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from conf.types.sites import SlurmSpec
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.points_alone import submit_points
from tests.slurm.conftest import WaitUntil, has_ended
from train_core.trial.measurement import Outcome

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm_cluster")]

PROGRAM = """
import json, os, sys
from pathlib import Path
names = ("FOO", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_TIMELIMIT", "OF_THE_SHELL")
Path(sys.argv[1]).write_text(json.dumps({name: os.environ.get(name) for name in names}))
for step in range(1, 4):
    print(f"step {step} loss 4 time 0.5 s", flush=True)
"""
SHELL = {
    **{"SBATCH_JOB_NAME": "mine", "SBATCH_PARTITION": "urgent", "SBATCH_TIMELIMIT": "1", "SBATCH_ARRAY_INX": "7"},
    **{"SLURM_EXPORT_ENV": "NONE", "SLURM_TIMELIMIT": "1", "SLURM_LABELIO": "1", "SLURM_NTASKS": "3"},
    **{"SQUEUE_FORMAT": "%i", "SQUEUE_PARTITION": "urgent", "SACCT_FORMAT": "jobid", "SLURM_TIME_FORMAT": "relative"},
    "OF_THE_SHELL": "yes",
}


@pytest.mark.parametrize(
    ("extra", "shell", "of_the_shell"),
    [({}, SHELL, "yes"), ({"export": "NONE"}, {}, None)],
    ids=["a shell full of settings", "no environment of the shell"],
)
def test_a_trial_has_the_request_and_the_environment_of_its_configuration(
    extra: dict[str, str | int | bool],
    shell: dict[str, str],
    of_the_shell: str | None,
    tmp_path: Path,
    folder: SweepFolder,
    record_of: RecordOf,
    slurm: SlurmSpec,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ({"OF_THE_SHELL": "yes"} | shell).items():
        monkeypatch.setitem(os.environ, name, value)
    program, seen = tmp_path / "program.py", tmp_path / "seen.json"
    program.write_text(PROGRAM)
    command = f"trainer.command=[{sys.executable},{program},{seen}]"
    record = record_of(
        [{"parallel.world_size": 1}], "trainer=command", command, "trainer.start=once", "training.num_warmup_steps=1"
    )
    settings = slurm.model_copy(update={"partition": "test", "environment": {"FOO": "bar"}, "extra_sbatch": extra})
    submit_points(Sweep(folder, record), settings)
    (state,) = wait_until(folder, record, lambda states: all(map(has_ended, states)), 60)
    assert (state.outcome, len(state.steps)) == (Outcome.COMPLETED, 3), state
    told = json.loads(seen.read_text())
    assert told.pop("SLURM_JOB_NAME") == (state.submission and state.submission.job_name)
    assert told == {
        "FOO": "bar",
        "SLURM_JOB_PARTITION": "test",
        "SLURM_TIMELIMIT": None,
        "OF_THE_SHELL": of_the_shell,
    }
