"""`trisweep sweep --command`, from the first command to MLflow's rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.forked_command import Commands
from tests.messages import said

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # MLflow's own
]

PROGRAM = """
import json, sys, time
lr, width = float(sys.argv[1]), int(sys.argv[2])
for epoch in range(3):
    print(json.dumps({"epoch": epoch, "loss": (lr - 0.1) ** 2 + 1 / width, "acc": 1 - abs(lr - 0.1)}), flush=True)
    time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
"""
MEANINGLESS = ("tp1", "pp1", "dp1", "mb1", "TFLOPS", "MFU", "tiny", "trainer.params", "layout")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "fit.py").write_text(PROGRAM)
    return tmp_path


def words(*values: str, command: str = "{lr} {width}") -> list[str]:
    return ["sweep", "--here", "--command", f"{sys.executable} fit.py {command}", *values]


GRID = ("lr=0.05,0.1", "width=4,8")
SEARCHED = ("lr=0.01..0.2:log", "width=4,8", "--trials", "3")


def trial_names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "trials").iterdir())


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, trisweep: Command, commands: Commands) -> tuple[Path, str]:
    """A folder in which a script was swept over a grid, and what the command printed."""
    commands.start()
    work = tmp_path_factory.mktemp("swept")
    (work / "fit.py").write_text(PROGRAM)
    done = trisweep(*words(*GRID, "--objective", "acc", "--maximize"), cwd=work)
    assert done.returncode == 0, done.stderr
    return work, done.stdout


def test_a_script_is_swept_and_no_page_speaks_of_layouts(swept: tuple[Path, str], trisweep: Command) -> None:
    work, printed = swept
    assert "reached the highest acc, 1.000" in " ".join(printed.split())
    folder = work / "runs" / "fit-local"
    assert len(trial_names(folder)) == 4
    assert all(name.startswith("fit-lr=") for name in trial_names(folder))
    status = trisweep("status", "fit", cwd=work)
    pages = [printed, status.stdout, *(folder.joinpath(f"report.{suffix}").read_text() for suffix in ("md", "csv"))]
    for page in pages:
        assert not [word for word in MEANINGLESS if word in page.replace("point.trainer.params", "")], page
    assert "step" in status.stdout
    assert "lr=0.1 width=8" in status.stdout
    said = json.loads(trisweep("report", "fit", "--json", cwd=work).stdout)
    assert {round(trial["metrics"]["acc"], 6) for trial in said["trials"]} == {0.95, 1.0}
    again = trisweep("sweep", "fit", cwd=work)  # by its name alone
    assert again.returncode == 0, again.stderr
    assert "started" not in again.stdout


def test_mlflow_has_the_values_and_figures_of_a_script_alone(swept: tuple[Path, str]) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{swept[0] / 'runs' / 'mlflow.db'}")
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    runs = client.search_runs([experiment.experiment_id], filter_string="tags.kind = 'trial'")
    found = sorted((run.data.params["lr"], run.data.params["width"]) for run in runs)
    assert found == [("0.05", "4"), ("0.05", "8"), ("0.1", "4"), ("0.1", "8")]
    for run in runs:
        assert run.data.params.keys() == {"lr", "width"}
        assert run.data.metrics.keys() == {"meas/loss", "meas/acc", "objective/acc", "step/loss", "step/acc"}
        assert [each.step for each in client.get_metric_history(run.info.run_id, "step/acc")] == [1, 2, 3]


def test_a_wrong_objective_stops_the_sweep_and_the_right_one_reads_the_same_logs(work: Path, trisweep: Command) -> None:
    one = ("lr=0.1", "width=4,8")
    done = trisweep(*words(*one, "--objective", "acuracy"), cwd=work)
    assert done.returncode == 1
    told = " ".join(done.stdout.split())
    assert "it printed no acuracy, which is sought, but acc, loss: give --objective acc" in told
    assert "trisweep sweep fit --here --retry-failed" in told or "trisweep sweep fit --retry-failed" in told
    folder = work / "runs" / "fit-local"
    ended = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/logs/rank-0.log")}
    right = trisweep(*words(*one, "--objective", "acc"), cwd=work)
    assert right.returncode == 0, right.stdout + right.stderr
    assert ended
    assert all(path.stat().st_mtime_ns == when for path, when in ended.items())


def test_the_same_command_goes_on_after_a_kill(work: Path, trisweep: Command) -> None:
    command = words("lr=0.05,0.1,0.2", "width=4", command="{lr} {width} 0.3")
    killed = subprocess.Popen([sys.executable, "-m", "trisweep", *command], cwd=work, stdout=subprocess.DEVNULL)
    folder, deadline = work / "runs" / "fit-local", time.monotonic() + 120
    while not list(folder.glob("trials/*/measurement.json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    before = {path: path.read_bytes() for path in folder.glob("trials/*/measurement.json")}
    done = trisweep(*command, cwd=work)
    assert done.returncode == 0, done.stderr
    assert len(trial_names(folder)) == 3
    assert {path: path.read_bytes() for path in before} == before


def test_a_saved_file_gives_the_same_trials(work: Path, trisweep: Command) -> None:
    saved = trisweep(*words(*SEARCHED, "--save", "mine/sweep/fit.yaml"), cwd=work)
    assert saved.returncode == 0, saved.stderr
    assert "trisweep sweep fit --config-dir mine" in saved.stdout
    assert not (work / "runs").exists()
    planned = [
        json.loads(trisweep(*each, "--here", "--dry-run", "--json", cwd=work).stdout)["would_run"]
        for each in (
            ["sweep", "fit", "--config-dir", "mine"],
            ["sweep", *words(*SEARCHED)[2:]],
        )
    ]
    assert planned[0] == planned[1] != []


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (["--command", "nowhere fit.py {lr}", "lr=1,2"], "--command"),
        (["--command", "python fitt.py {lr}", "lr=1,2"], ""),
        (["lr=1,2"], "--command"),
        (["--command", "python fit.py {lr}", "lr=1,2", "--maximize"], "--objective"),
        (["smoke", "--save", "x.yaml"], "--command"),
    ],
)
def test_a_wrong_command_line_is_one_message_and_leaves_nothing(
    work: Path, trisweep: Command, given: list[str], key: str
) -> None:
    done = trisweep("sweep", "--here", *given, cwd=work)
    said(done, key)
    assert not (work / "runs").exists()
