"""The package as `pip install` and `pipx install` leave it: a real wheel, away from the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = ("model=tiny", "training.num_steps=2", "training.num_warmup_steps=1", "output_dir=runs")
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commands of an environment in which the wheel is installed, and nothing of the checkout."""
    place = tmp_path_factory.mktemp("wheel")
    tracked = run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")
    for name in filter(None, tracked):
        if not name.startswith(("tests/", "docs/", "benchmarks/")) and (ROOT / name).is_file():
            (place / "code" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place / "code" / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", place / "dist", place / "code", cwd=place)
    assert built.returncode == 0, built.stderr
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    # What the wheel depends on. Python reads no .pth file there, so that the checkout, which one links, stays unknown.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (wheel,) = (place / "dist").glob("*.whl")
    installed = run(*pip, f"--python={python}", "install", "--no-deps", "--no-index", wheel, cwd=place)
    assert installed.returncode == 0, installed.stderr
    return python.parent


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder in which somebody's own package is called as one of ours."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "__init__.py").write_text("raise SystemExit('this is not our conf')\n")
    return tmp_path


def test_every_file_that_is_read_is_in_the_wheel(bin_folder: Path, elsewhere: Path) -> None:
    (packages,) = (bin_folder.parent / "lib").glob("python*/site-packages")
    tracked = run("git", "ls-files", "conf", "results", "sweeps", "train_core", "launcher", "cli", cwd=ROOT).stdout
    assert [name for name in tracked.split() if (ROOT / name).exists() and not (packages / name).exists()] == []


def test_commands_work_in_a_folder_with_a_conf_of_its_own(bin_folder: Path, elsewhere: Path) -> None:
    planned = run(bin_folder / "trisweep", "plan", "smoke", cwd=elsewhere)
    assert planned.returncode == 0, planned.stderr
    listed = run(bin_folder / "trisweep", "list", "model", cwd=elsewhere)
    assert "gpt-175b" in listed.stdout, listed.stderr


def test_a_training_runs_there(bin_folder: Path, elsewhere: Path) -> None:
    done = run(bin_folder / "python", "-m", "train_core", *TINY, cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "COMPLETED" in done.stdout


def test_a_calibration_is_not_written_into_the_installed_package(bin_folder: Path, elsewhere: Path) -> None:
    done = run(bin_folder / "trisweep", "calibrate", "cluster=local", "--here", cwd=elsewhere)
    assert done.returncode == 2
    assert "would be written into the installed package" in done.stderr
