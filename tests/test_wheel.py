"""The package as `pip install` and `pipx install` leave it: a real wheel, away from the checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("conf", "costs", "train_core", "rates", "sweeps", "launcher", "results", "calibrate", "diagnose", "cli")
PROGRAM = """from conf import LOSS
for step in range(1, 5):
    print(f"step {step} loss {LOSS} time 0.01 s")
"""
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
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, first in PYTHONPATH too, in which somebody's own packages are called as ours."""
    for name in OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('this is not our {name}')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def packages_of(bin_folder: Path) -> Path:
    (packages,) = (bin_folder.parent / "lib").glob("python*/site-packages")
    return packages


def test_every_file_that_is_read_is_in_the_wheel(bin_folder: Path) -> None:
    tracked = run("git", "ls-files", *OURS, cwd=ROOT).stdout
    ours = packages_of(bin_folder) / "trisweep"
    assert [name for name in tracked.split() if (ROOT / name).exists() and not (ours / name).exists()] == []


def test_installed_it_has_one_name_among_other_peoples_packages(bin_folder: Path) -> None:
    names = {path.name.split("-")[0] for path in packages_of(bin_folder).iterdir() if path.suffix != ".pth"}
    assert names == {"trisweep"}


@pytest.mark.thorough  # than the training that runs there
def test_a_sweep_runs_with_its_own_packages_and_another_program_with_its_own(bin_folder: Path, elsewhere: Path) -> None:
    """The trial imports `conf` as the trained program knows it, which is not ours and not one that refuses."""
    (elsewhere / "conf" / "__init__.py").write_text("LOSS = 2.5\n")
    (elsewhere / "program.py").write_text(PROGRAM)
    own = ("trainer=command", "trainer.start=once", "trainer.command=['{python}',program.py]", "output_dir=runs")
    done = run(
        bin_folder / "trisweep",
        "sweep",
        "smoke",
        "--here",
        *own,
        "sweep.points=[{parallel.world_size:1}]",
        cwd=elsewhere,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for metrics in elsewhere.rglob("metrics.jsonl") for line in metrics.read_text().splitlines()]
    assert {json.loads(line)["loss"] for line in lines} == {2.5}


def test_the_face_works_there_and_names_a_module_that_would_be_hidden(bin_folder: Path, tmp_path: Path) -> None:
    use = "import trisweep; print(trisweep.plan('smoke').best.fits, trisweep.__file__)"
    planned = run(bin_folder / "python", "-c", use, cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    fits, where = planned.stdout.split()
    assert fits == "True"
    assert Path(where).is_relative_to(bin_folder.parent)
    (tmp_path / "results.py").write_text("")
    refused = run(bin_folder / "python", "-c", use, cwd=tmp_path)
    assert f"results is {tmp_path}/results.py, and Trisweep has a package of that name" in refused.stderr


def test_the_recipe_of_the_container_copies_all_that_a_wheel_is_made_of() -> None:
    recipe = (ROOT / "apptainer.def").read_text()
    assert [name for name in (*OURS, "trisweep") if f" {name} /opt/trisweep/{name}\n" not in recipe] == []


def test_commands_work_in_a_folder_with_a_conf_of_its_own(bin_folder: Path, elsewhere: Path) -> None:
    planned = run(bin_folder / "trisweep", "plan", "smoke", cwd=elsewhere)
    assert planned.returncode == 0, planned.stderr
    listed = run(bin_folder / "trisweep", "list", "model", cwd=elsewhere)
    assert "gpt-175b" in listed.stdout, listed.stderr


def test_a_training_runs_there(bin_folder: Path, elsewhere: Path) -> None:
    done = run(bin_folder / "trisweep", "train", *TINY, cwd=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "COMPLETED" in done.stdout


def test_a_calibration_is_not_written_into_the_installed_package(bin_folder: Path, elsewhere: Path) -> None:
    done = run(bin_folder / "trisweep", "calibrate", "cluster=local", "--here", cwd=elsewhere)
    assert done.returncode == 2
    assert "would be written into the installed package" in done.stderr
