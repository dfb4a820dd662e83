"""The code that jobs run."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import provenance
from launcher.provenance import checksum_of_files, snapshot_code
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
