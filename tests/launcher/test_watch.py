"""Somebody who watches asks Slurm the more rarely the less changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.watch import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, SlurmWatch
from sweeps.folder.submission import Submission, write_submission
from sweeps.reading import Reading
from tests.results.conftest import experiment
from train_core.measurement import Outcome
from train_core.trial_folder import TrialFolder

ANSWER = 'echo asked >> "{log}"; echo "12|RUNNING|N/A|node1|ours|"'


@pytest.fixture
def reading(tmp_path: Path, slurm_submission: Callable[..., Submission]) -> Reading:
    folder = TrialFolder(tmp_path / "trial")
    folder.path.mkdir()
    write_submission(folder, slurm_submission("12", job_name="ours", cluster="test"))
    return Reading(folder=folder, experiment=experiment())


def test_slurm_is_asked_ever_more_rarely_and_its_last_word_is_kept(
    reading: Reading, tmp_path: Path, tools: Callable[..., None]
) -> None:
    log, now = tmp_path / "questions", 0.0
    tools(squeue=ANSWER.format(log=log), scontrol="echo 'ClusterName = test'")
    watch = SlurmWatch(clock=lambda: now)
    asked_at = []
    while now < 600:
        before = log.read_text() if log.exists() else ""
        (told,) = watch.latest([reading])
        assert told.outcome is Outcome.RUNNING
        if log.read_text() != before:
            asked_at.append(now)
        now += 2
    pauses = [after - before for before, after in pairwise(asked_at)]
    assert pauses[0] == FIRST_PAUSE_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_a_change_is_followed_by_a_question_soon(reading: Reading, tmp_path: Path, tools: Callable[..., None]) -> None:
    log, now = tmp_path / "questions", 0.0
    tools(squeue=ANSWER.format(log=log), scontrol="echo 'ClusterName = test'")
    watch = SlurmWatch(clock=lambda: now)
    while now < 600:
        watch.latest([reading])
        now += 2
    asked = log.read_text()
    watch.latest([])  # the trial is gone, as when it has ended
    now += FIRST_PAUSE_SECONDS
    watch.latest([reading])
    assert log.read_text() != asked
