"""Programs are read only from files that nobody else can have written."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import subprocess
from pathlib import Path

import pytest

from conf.errors import UsageError
from conf.private_files import read_own, require_own_folders, unreadable
from tests.messages import refused

DENIED = PermissionError(errno.EACCES, "Permission denied")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    (folder / "program").write_bytes(b"x")
    (folder / "program").chmod(0o600)
    return folder / "program"


def test_a_file_of_ones_own_is_read(program: Path) -> None:
    assert read_own(program) == b"x"
    program.parent.chmod(0o755)
    program.chmod(0o644)
    assert read_own(program) == b"x"  # others may look


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(mode: int, program: Path) -> None:
    program.chmod(mode)
    with refused(UsageError, program):
        read_own(program)


def test_a_folder_in_which_others_may_write_is_refused(program: Path) -> None:
    program.parent.chmod(0o770)
    with refused(UsageError, program.parent):
        read_own(program)


def test_the_command_that_is_advised_runs_as_printed_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "my (own) runs"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError) as caught:
        require_own_folders(folder)
    (command,) = re.findall("`(.*)`", str(caught.value))
    subprocess.run(["/bin/sh", "-c", command], check=True)
    require_own_folders(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user_is_refused(program: Path) -> None:
    os.chown(program, 12345, -1)
    with refused(UsageError):
        read_own(program)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_folder_above_in_which_nobody_else_may_rename_is_taken(program: Path, mode: int) -> None:
    (program.parent / "runs").mkdir()
    program.parent.chmod(mode)
    require_own_folders(program.parent / "runs")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to any group")
def test_a_folder_above_in_which_a_group_may_rename_is_refused(program: Path) -> None:
    project = program.parent / "project"
    (project / "runs").mkdir(parents=True)
    os.chown(project, -1, 12345)
    project.chmod(0o2775)
    with refused(UsageError, project):
        require_own_folders(project / "runs")


def test_the_users_own_group_lets_in_nobody_else(program: Path) -> None:
    """Many systems give every user such a group, and a umask that lets it write."""
    program.parent.chmod(0o770)
    own = grp.getgrgid(os.getegid()).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    os.chown(program.parent, -1, os.getegid())
    if own:
        require_own_folders(program.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_folder_of_another_user_above_is_refused(program: Path) -> None:
    runs = program.parent / "runs"
    runs.mkdir()
    os.chown(program.parent, 12345, -1)
    with refused(UsageError, program.parent):
        require_own_folders(runs)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_may_not_be_read_is_said_to_be_its_owners(program: Path) -> None:
    os.chown(program, pwd.getpwnam("nobody").pw_uid, -1)
    message = str(unreadable(program, DENIED))
    assert f"{program} cannot be read (Permission denied): it belongs to user nobody. " in message
    assert f"Have user nobody give `chmod -R g+rX {program}`" in message
    os.chown(program.parent, 4321, -1)
    assert f"{program.parent} belongs to user 4321" in str(unreadable(program.parent / "gone", DENIED))
