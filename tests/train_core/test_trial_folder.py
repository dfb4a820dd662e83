"""Files that are replaced whole, and folders in which only the last attempt writes."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.steps import STEP
from train_core.attempt import Attempt, AttemptOver
from train_core.measurement import Outcome, RankFailure
from train_core.trial_folder import TrialFolder, append_whole, replacing, write_atomically


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    behind, link = tmp_path / "disk" / "table.csv", tmp_path / "table.csv"
    write_atomically(behind, "old")
    link.symlink_to(behind)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert behind.read_text() == "new"
    assert list(behind.parent.iterdir()) == [behind]


def test_a_link_to_nothing_yet_leads_to_the_new_file(tmp_path: Path) -> None:
    link = tmp_path / "table.csv"
    link.symlink_to("later.csv")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "later.csv").read_text() == "new"


def test_a_link_to_itself_becomes_a_file(tmp_path: Path) -> None:
    link = tmp_path / "table.csv"
    link.symlink_to(link)
    write_atomically(link, "new")
    assert link.read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_file_keeps_who_may_read_and_write_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    path.chmod(mode)
    write_atomically(path, "new")
    assert path.stat().st_mode & 0o7777 == mode
    assert path.read_text() == "new"


def test_a_new_file_is_private_to_the_user(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new.csv", "new")
    assert (tmp_path / "new.csv").stat().st_mode & 0o7777 == 0o600


def test_a_file_that_came_first_stays_where_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "measurement.json"
    with replacing(path, keep_existing=True) as file:
        path.write_text("first")
        file.write(b"second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


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


def test_a_line_that_fits_only_in_part_leaves_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_whole(path, "whole\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            append_whole(path, "too long for it\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "whole\n"
