"""Folders of trials: what is kept, what is said, and that only the last attempt writes in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.permissions import bound_by_permissions
from tests.steps import STEP
from train_core.process.lock import hold_lock
from train_core.trial.folder import Attempt, AttemptOver, TrialFolder, is_held
from train_core.trial.measurement import Outcome, RankFailure

FAILURE = RankFailure(rank=1, outcome=Outcome.FAILED, cause="its peer is gone", traceback="", time=1.0)


@pytest.mark.parametrize("later", [Attempt(1, 1), Attempt(2, 0)])
def test_who_outlived_an_attempt_can_write_nothing_once_the_next_has_begun(tmp_path: Path, later: Attempt) -> None:
    outlived, begun = TrialFolder(tmp_path, Attempt(1, 0)), TrialFolder(tmp_path, later)
    outlived.claim_for_attempt()
    outlived.require_current()
    begun.claim_for_attempt()
    for write in (
        lambda: outlived.append_metrics(STEP),
        lambda: outlived.write_failure(FAILURE),
        outlived.forget_progress,
        outlived.raise_alarm,
        outlived.claim_for_attempt,
    ):
        with pytest.raises(AttemptOver, match=rf"attempt 1\.0 is over: attempt {later} works in"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["attempt"]
    begun.write_failure(FAILURE)


def test_a_damaged_claim_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "attempt").write_bytes(b"\xff2.x")
    TrialFolder(tmp_path, Attempt(1, 0)).claim_for_attempt()


def test_metrics_that_a_full_disk_did_not_take_are_written_once_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = TrialFolder(tmp_path)
    trial.metrics.symlink_to("/dev/full")
    steps = [STEP.model_copy(update={"step": step}) for step in (1, 2, 3)]
    for step in steps[:2]:
        trial.append_metrics(step)
    said = f"{trial.metrics} cannot be written (No space left on device): lines from step 1 on are tried again"
    assert capsys.readouterr().out.count(said) == 1
    trial.metrics.unlink()
    trial.append_metrics(steps[2])
    assert trial.read_metrics() == steps


def test_a_lock_that_may_only_be_read_is_seen_to_be_held(tmp_path: Path) -> None:
    lock = tmp_path / "running.lock"
    with hold_lock(lock), bound_by_permissions():
        lock.chmod(0o444)
        assert is_held(lock)
    with bound_by_permissions():
        assert not is_held(lock)
