"""The example of docs/how-to/my-own-trainer.md, as a reader would copy it from the page and run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from train_core.trial.measurement import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "my-own-trainer.md"


def block(language: str) -> str:
    """The page's first block of this language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's files are in the working folder."""
    (tmp_path / "config" / "sweep").mkdir(parents=True)
    (tmp_path / "config" / "sweep" / "my-sweep.yaml").write_text(block("yaml"))
    (tmp_path / "train.py").write_text(block("python"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("reader")
def test_the_pages_sweep_can_be_planned_and_its_trainer_is_python() -> None:
    compile(block("python"), "train.py", "exec")
    done = CliRunner().invoke(app, ["plan", "my-sweep", "--config-dir", "config"])
    assert done.exit_code == 0, done.output


@pytest.mark.thorough  # than launcher/command_trainer
@pytest.mark.slow
@pytest.mark.usefixtures("reader")
def test_the_pages_trainer_is_swept_by_the_pages_sweep(tmp_path: Path) -> None:
    point = ("batch.micro_batch_size=2", "training.num_steps=4", "training.num_warmup_steps=1")
    trisweep = str(Path(sys.executable).with_name("trisweep"))
    command = [trisweep, "sweep", "my-sweep", "--config-dir", "config", "--here", *point]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    readings = Sweep.stored_in(SweepFolder(tmp_path / "runs" / "my-sweep-local")).read()
    asked = [reading for reading in readings if reading.outcome is not Outcome.PENDING]  # of a part of the sweep
    assert [reading.outcome for reading in asked] == [Outcome.COMPLETED], [reading.cause for reading in asked]
    (reading,) = asked
    assert reading.performance is not None
    assert len(reading.performance.losses) == 4
    assert reading.performance.num_timed_steps == 3
    (report,) = (path.read_text() for path in (tmp_path / "runs" / "my-sweep-local").glob("report*.md"))
    assert "my-trainer, read from its log; FLOPs by our formula" in report
