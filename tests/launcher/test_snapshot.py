"""The code that jobs run."""

from __future__ import annotations

import os
import py_compile
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import provenance
from launcher.provenance import CHECKSUM_OF_FILES, checksum_of_files, snapshot_code
from train_core.process.git_sha import ROOT, git_sha


def test_the_copy_is_compiled_and_can_be_imported_and_holds_the_configuration(tmp_path: Path) -> None:
    code = snapshot_code(tmp_path / "code")
    assert (code / "conf" / "slurm" / "frontier.yaml").exists()
    compiled = set(code.rglob("*.pyc"))
    assert len(compiled) == len(list(code.rglob("*.py")))
    check = "import conf, launcher.job, train_core.trial_folder; print(launcher.job.run_in_slurm.__code__.co_filename)"
    environment = {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", check], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(code))
    assert set(code.rglob("*.pyc")) == compiled, "it was compiled anew"


def test_a_snapshot_knows_the_commit_it_was_made_from(tmp_path: Path) -> None:
    code = snapshot_code(tmp_path / "code")
    ask = "from train_core.process.git_sha import git_sha; print(git_sha())"
    environment = {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ask], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == git_sha() != ""


def test_a_checkout_of_another_user_tells_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    own = git_sha()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert git_sha() == own != "unknown"


def test_the_same_code_is_copied_once_and_changed_code_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkout"
    (root / "conf").mkdir(parents=True)
    (root / "conf" / "a.py").write_text("A = 1")
    monkeypatch.setattr(provenance, "ROOT", root)
    first = snapshot_code(tmp_path / "code")
    assert snapshot_code(tmp_path / "code") == first
    (root / "conf" / "a.py").write_text("A = 2")
    second = snapshot_code(tmp_path / "code")
    assert second != first
    assert (first / "conf" / "a.py").read_text() == "A = 1"
    assert (second / "conf" / "a.py").read_text() == "A = 2"


def test_what_replaces_a_snapshot_is_not_taken_for_it_when_further_jobs_are_submitted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("A = 1")
    submitted = checksum_of_files(tmp_path)
    (tmp_path / "a.py").write_text("A = 2")
    assert checksum_of_files(tmp_path) == submitted


PLANTS = {
    "a link to a file": lambda code: (code / "sitecustomize.py").symlink_to("/dev/null"),
    "a link to a folder": lambda code: (code / "evil").symlink_to("/tmp"),
    "a link that leads nowhere": lambda code: (code / "sitecustomize.py").symlink_to("/nowhere/later.py"),
    "a link in a folder below": lambda code: (code / "conf" / "evil.py").symlink_to("/dev/null"),
    "a link in the place of a folder": lambda code: ((code / "empty").rmdir(), (code / "empty").symlink_to("/tmp")),
    "an empty folder": lambda code: (code / "evil").mkdir(),
    "a pipe": lambda code: os.mkfifo(code / "evil.py"),
    "a socket": lambda code: os.mknod(code / "evil.py", stat.S_IFSOCK | 0o600),
    "a right for others to write a file": lambda code: (code / "conf" / "a.py").chmod(0o620),
    "a right for others to write a folder": lambda code: (code / "conf").chmod(0o707),
    "a right for others to write the folder above": lambda code: code.parent.chmod(0o770),
    "a file": lambda code: (code / "evil.py").touch(),
    "a path file": lambda code: (code / "evil.pth").write_text("import os"),
    "a compiled file": lambda code: (code / "conf" / "evil.pyc").touch(),
    "a hidden file": lambda code: (code / ".evil").touch(),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_whatever_is_planted_in_the_code_changes_its_checksum(tmp_path: Path, plant: Callable[[Path], object]) -> None:
    code = tmp_path / "code"
    (code / "conf").mkdir(parents=True)
    (code / "empty").mkdir()
    (code / "conf" / "a.py").write_text("A = 1")
    before = _asked_by_the_job(code)
    assert checksum_of_files(code) == before
    plant(code)
    assert _asked_by_the_job(code) != before


def test_a_file_that_a_link_to_itself_replaces_changes_the_checksum(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("A = 1")
    before = _asked_by_the_job(code)
    (code / "a.py").rename(tmp_path / "a.py")
    (code / "a.py").symlink_to(tmp_path / "a.py")
    assert _asked_by_the_job(code) != before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("name", [".", "conf", "conf/a.py", ".."])
def test_what_belongs_to_somebody_else_changes_the_checksum(tmp_path: Path, name: str) -> None:
    """They could change it after the check."""
    code = tmp_path / "code" / "abc"
    (code / "conf").mkdir(parents=True)
    (code / "conf" / "a.py").write_text("A = 1")
    before = _asked_by_the_job(code)
    os.chown(code / name, 12345, -1)
    assert _asked_by_the_job(code) != before


def _asked_by_the_job(code: Path) -> str:
    return subprocess.run(
        ["sh", "-c", CHECKSUM_OF_FILES], cwd=code, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_what_python_has_compiled_is_taken_over_unless_the_source_has_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "checkout" / "conf" / "a.py"
    source.parent.mkdir(parents=True)
    source.write_text("A = 1")
    py_compile.compile(str(source))
    source.with_name("b.py").write_text("B = 2")
    monkeypatch.setattr(provenance, "ROOT", tmp_path / "checkout")
    first = snapshot_code(tmp_path / "code")
    source.write_text("A = 'changed'")
    second = snapshot_code(tmp_path / "code")
    shown = [_printed(first, "conf.a", "A"), _printed(first, "conf.b", "B"), _printed(second, "conf.a", "A")]
    assert shown == ["1", "2", "changed"]


def _printed(code: Path, module: str, name: str) -> str:
    ask = f"import {module}; print({module}.{name}); assert {module}.__spec__.cached.startswith({str(code)!r})"
    environment = {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", ask], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
