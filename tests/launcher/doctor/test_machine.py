"""What the doctor sees of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.doctor.examination import file_system_of, folder_findings


def statuses(folder: Path) -> dict[str, str]:
    return {each.name: each.status for each in folder_findings(folder, with_slurm=True, with_job=False)}


def test_a_folder_that_can_be_written_is_ok_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    found = statuses(folder)
    assert (found["output_dir"], found["privacy"], found["file locks"]) == ("ok", "ok", "ok")
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = statuses(tmp_path / "file" / "runs")
    assert found["output_dir"] == "problem"
    assert "file locks" not in found


def test_a_folder_that_others_may_write_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    assert statuses(tmp_path)["privacy"] == "warning"


@pytest.mark.parametrize(("folder", "kind"), [("/scratch/me", "lustre"), ("/home/me", "nfs4"), ("/scratches", "ext4")])
def test_the_innermost_mount_says_which_file_system_it_is(folder: str, kind: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw\nb /scratch lustre rw\nc /home autofs rw\nd /home nfs4 rw\n")
    assert file_system_of(Path(folder), mounts) == kind
