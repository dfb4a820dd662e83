"""The code that jobs run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from launcher import provenance
from launcher.provenance import ALL_PACKAGES, checksum_command, checksum_of, snapshot_code
from launcher.rerun import _commit_of
from train_core.process.git_sha import ROOT, git_sha, trainer_code


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole code, at a path with a blank in it."""
    return snapshot_code(tmp_path_factory.mktemp("a sweep") / "code", ALL_PACKAGES)


def run_in(code: Path, program: str, **variables: str) -> str:
    """What a program prints that imports our packages from `code`, as a job does."""
    environment = {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1", **variables}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=code.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


def test_a_snapshot_is_one_file_that_is_compiled_and_can_be_imported(snapshot: Path) -> None:
    assert [path.name for path in snapshot.parent.iterdir()] == [snapshot.name]
    with ZipFile(snapshot) as archive:
        names = archive.namelist()
    assert len([name for name in names if name.endswith(".py")]) == len([name for name in names if name[-4:] == ".pyc"])
    check = "import launcher.job; print(launcher.job.run_in_slurm.__code__.co_filename, launcher.job.__file__)"
    assert run_in(snapshot, check) == f"{snapshot}/launcher/job.py {snapshot}/launcher/job.pyc"


def test_a_traceback_in_a_snapshot_shows_the_lines_of_the_snapshot(snapshot: Path) -> None:
    fail = """
import launcher.job, traceback
try:
    launcher.job.run_on_this_machine('/proc/nowhere', (), None)
except OSError:
    traceback.print_exc()
"""
    said = run_in(snapshot, fail)
    assert "if TrialFolder(folder).read_experiment().trainer.is_own:" in said


def test_a_snapshot_knows_its_commit_and_the_digest_of_its_trainer(snapshot: Path) -> None:
    ask = "from train_core.process.git_sha import *; print(git_sha(), trainer_code())"
    assert run_in(snapshot, ask) == f"{git_sha()} {trainer_code()}"


def test_a_job_reads_what_lies_beside_its_code_and_leaves_no_copy_on_its_node(snapshot: Path, tmp_path: Path) -> None:
    """A controller composes configurations and writes reports."""
    ask = """
from conf.compose.load import compose
from conf.own_files import at_hand
from conf.overrides import Overrides
from conf.types.sbatch_options import sbatch_table
from launcher.command_trainer.process import HUGGINGFACE_STARTER
from results.analysis.knobs.sensitivity import published_order
from results.render.page import _environment
from results.report.sections.published import published_figures
from sweeps.confidence import load_validated
from sweeps.practice import load_levels

assert sbatch_table() and published_figures() and published_order("nothing") == []
assert load_validated() and load_levels()
assert _environment().get_template("report.html") and "Trainer" in at_hand(HUGGINGFACE_STARTER).read_text()
print(compose(Overrides.parse(["sweep=smoke"])).settings.sweep.name)
"""
    assert run_in(snapshot, ask, TMPDIR=str(tmp_path)) == "smoke"
    assert not list(tmp_path.iterdir())


def test_a_checkout_of_another_user_tells_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    own = git_sha()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert git_sha() == own != "unknown"


def test_the_same_code_is_copied_once_and_changed_code_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkout"
    (root / "conf").mkdir(parents=True)
    (root / "conf" / "__init__.py").touch()
    (root / "conf" / "a.py").write_text("A = 1")
    monkeypatch.setattr(provenance, "ROOT", root)
    first = snapshot_code(tmp_path / "code")
    assert snapshot_code(tmp_path / "code") == first
    (root / "conf" / "a.py").write_text("A = 2")
    second = snapshot_code(tmp_path / "code")
    assert second != first
    assert [run_in(code, "import conf.a; print(conf.a.A)") for code in (first, second)] == ["1", "2"]


def test_two_that_keep_the_same_code_at_once_and_one_that_is_killed_leave_whole_archives(tmp_path: Path) -> None:
    ask = "import sys; from pathlib import Path; from launcher.provenance import *; snapshot_code(Path(sys.argv[1]))"
    command, code = [sys.executable, "-c", ask, str(tmp_path / "code")], tmp_path / "code"
    killed, *others = (subprocess.Popen(command, cwd=ROOT) for _ in range(3))
    while not code.exists() and killed.poll() is None:
        time.sleep(0.001)
    killed.kill()
    assert [each.wait() for each in (killed, *others)][1:] == [0, 0]
    (kept,) = code.glob("*.zip")
    with ZipFile(kept) as archive:
        assert archive.testzip() is None


def test_what_replaces_a_snapshot_is_not_taken_for_it_when_further_jobs_are_submitted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("A = 1")
    submitted = checksum_of(tmp_path)
    (tmp_path / "a.py").write_text("A = 2")
    assert checksum_of(tmp_path) == submitted


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
    assert checksum_of(code) == before
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
        ["sh", "-c", checksum_command(code)], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_module_that_cannot_be_compiled_says_so_in_the_rank_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    (tmp_path / "checkout" / "conf").mkdir(parents=True)
    (tmp_path / "checkout" / "conf" / "__init__.py").touch()
    (tmp_path / "checkout" / "conf" / "a.py").write_text("print('ran')" if is_compiled else "print('ran'")
    monkeypatch.setattr(provenance, "ROOT", tmp_path / "checkout")
    said = run_in(snapshot_code(tmp_path / "code"), "import conf.a")
    assert said == "ran" if is_compiled else "SyntaxError" in said


def test_the_commit_is_told_of_a_whole_archive(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "torn.zip").write_bytes(snapshot.read_bytes()[:1000])
    told = [_commit_of(path) for path in (snapshot, tmp_path / "torn.zip", tmp_path / "none")]
    assert told == [git_sha(), "", ""]
