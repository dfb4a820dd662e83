"""What `trisweep logs` prints of a trial: the words of whoever trained, each once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.output.trial_log import print_log
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.steps import STEP

PROGRAM = ("trainer=command", "trainer.command=[fit]", "trainer.start=once")
OF_JOB, OF_PROGRAM, OF_STEP = (
    "submitit INFO - Job completed successfully\n",
    "step 1 loss 4 time 1 s\n",
    "step 1/3: loss",
)


@pytest.mark.parametrize(
    ("overrides", "told", "printed"),
    [
        (PROGRAM, OF_PROGRAM, [OF_PROGRAM]),
        (PROGRAM, "", [OF_JOB]),
        ((), OF_PROGRAM, [OF_JOB, OF_STEP]),
    ],
    ids=["a program", "a program without a word", "this package's trainer"],
)
def test_a_log_holds_what_the_trainer_said(
    overrides: tuple[str, ...],
    told: str,
    printed: list[str],
    tmp_path: Path,
    build_record: BuildRecord,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep = Sweep(SweepFolder(tmp_path), build_record([{}], overrides))
    (trial,) = sweep.record.trials
    folder = sweep.prepare(trial)
    folder.logs.mkdir(exist_ok=True)
    folder.metrics.write_text(STEP.model_dump_json() + "\n")
    for when, (name, text) in enumerate({"rank-0.log": told, "7_0_log.out": OF_JOB}.items()):
        (folder.logs / name).write_text(text)
        os.utime(folder.logs / name, (when, when))
    print_log(TrialReading(folder=folder, experiment=trial.experiment, trial=trial), None)
    said = capsys.readouterr().out
    assert [each for each in (OF_JOB, OF_PROGRAM, OF_STEP) if each in said] == printed
