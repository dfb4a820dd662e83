"""The example of docs/how-to/stages.md, as a reader would copy it from the page and run it."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "stages.md"
TRISWEEP = str(Path(sys.executable).with_name("trisweep"))
PROGRAMS = ("train.py", "inference.py", "evaluate.py")


def write_example(folder: Path) -> None:
    """The page's programs and its sweep, in the folder of a reader."""
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, text in zip((*PROGRAMS, "config/sweep/my-sweep-chain.yaml"), blocks, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def sweep_example(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [TRISWEEP, "sweep", "my-sweep-chain", "--config-dir", "config", *options]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
    )


def read_stages(folder: Path) -> dict[tuple[str, float], TrialReading]:
    """Each trial by its stage, empty of a training, and by its learning rate."""
    (sweep,) = (Sweep.stored_in(SweepFolder(path)) for path in (folder / "runs").glob("my-sweep-chain-*"))
    return {(each.trial.stage, float(str(each.trial.point["training.learning_rate"]))): each for each in sweep.read()}


def require_chains(stages: dict[tuple[str, float], TrialReading]) -> None:
    """What the page says of its example: two whole chains, and one that ends with its inference."""
    outcomes = {key: each.outcome for key, each in stages.items()}
    whole = {(stage, rate): Outcome.COMPLETED for stage in ("", "inference", "evaluate") for rate in (0.1, 0.3)}
    assert outcomes == whole | {("", 1.5): Outcome.COMPLETED, ("inference", 1.5): Outcome.FAILED}
    assert stages["inference", 1.5].cause == "ValueError: the forecast leaves the range of the data"
    assert stages["evaluate", 0.3].metrics == pytest.approx({"rmse": 3 * 0.4**4, "region.tropics": 1.5 * 0.4**4})
    for stage, before in (("inference", ""), ("evaluate", "inference")):
        assert stages[stage, 0.1].trial.after == stages[before, 0.1].name
        begun, ended = stages[stage, 0.1].submission, stages[before, 0.1].measurement
        assert begun is not None
        assert ended is not None
        assert begun.submitted >= ended.ended - 0.01  # the two clocks are one


def test_a_plan_on_paper_names_no_best_point_of_a_figure_that_it_cannot_know(tmp_path: Path) -> None:
    write_example(tmp_path)
    command = [TRISWEEP, "plan", "my-sweep-chain", "--config-dir", "config"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "The sweep seeks evaluate.rmse, which is measured and never predicted." in done.stdout
    assert "Best:" not in done.stdout
    assert "--search finds" not in done.stdout


@pytest.mark.thorough  # than launcher/control/test_stages
@pytest.mark.slow
def test_the_pages_chains_run_and_the_report_and_mlflow_show_them(tmp_path: Path) -> None:
    write_example(tmp_path)
    done = sweep_example(tmp_path, "--here")
    assert done.returncode == 0, done.stdout + done.stderr
    require_chains(read_stages(tmp_path))
    report = (tmp_path / "runs" / "my-sweep-chain-local" / "report.md").read_text()
    followed = report.partition("## What followed (measured)")[2].partition("\n## ")[0]
    rows = [line.strip("|").replace(" ", "").split("|") for line in followed.splitlines() if line.startswith("| lr")]
    assert [row[1:3] for row in rows] == [["completed", "completed"]] * 2 + [["failed", "needsinference"]]
    assert "evaluate.region.tropics" in followed
    with sqlite3.connect(tmp_path / "runs" / "mlflow.db") as store:
        of_stages = "select run_uuid, value from tags where key = 'stage'"
        stages = dict(store.execute(of_stages))
        parents = dict(store.execute("select run_uuid, value from tags where key = 'mlflow.parentRunId'"))
        rmse = dict(store.execute("select run_uuid, value from latest_metrics where key = 'evaluate/rmse'"))
    assert sorted(stages.values()) == ["evaluate"] * 2 + ["inference"] * 3
    assert {stages.get(parents[run]) for run, stage in stages.items() if stage == "evaluate"} == {"inference"}
    assert set(rmse) == {run for run, stage in stages.items() if stage == "evaluate"}

    evaluated = read_stages(tmp_path)["evaluate", 0.3]
    command = [TRISWEEP, "rerun", "my-sweep-chain", evaluated.name, "--config-dir", "config"]
    once_more = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert once_more.returncode == 0, once_more.stdout + once_more.stderr
    assert re.search(r"\n *rmse +0\.0768 +0\.0768 +1\.000 *\n", once_more.stdout), once_more.stdout
    (folder,) = (tmp_path / "runs" / "rerun").glob(f"*/{evaluated.name}")
    measured = TrialFolder(folder).read_measurement()
    assert measured is not None
    assert measured.metrics == evaluated.metrics

    (tmp_path / "inference.py").write_text((tmp_path / "inference.py").read_text().replace("> 1", "> 1e9"))
    again = sweep_example(tmp_path, "--here", "--retry-failed")
    assert again.returncode == 0, again.stdout + again.stderr
    stages_now = read_stages(tmp_path)
    assert stages_now["evaluate", 1.5].metrics["rmse"] == pytest.approx(3 * 2**4)
    attempts = {key: each.next_attempt - 1 for key, each in stages_now.items()}
    assert attempts == dict.fromkeys(stages_now, 1) | {("inference", 1.5): 2}
