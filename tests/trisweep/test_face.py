"""`import trisweep` returns what the commands print, with few packages for a plan, and beside modules of the user's."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import trisweep as face
from cli.main import app
from cli.output.console import console
from tests.cli.commands.plan.conftest import ON_A_NODE
from tests.docs.test_diagnose import example_log
from tests.messages import refused, said

ROOT = Path(__file__).parents[2]
SMALL = ("model=gpt-22b", "cluster=selene", "precision=bf16", "batch.global_batch_size=256")
TABLE = {
    "gpu": "A100-80GB",
    "num_gpus": 8,
    "layers": 24,
    "hidden": 2048,
    "heads": 16,
    "seq": 2048,
    "global_batch": 64,
    "micro_batch": 4,
    "tp": 1,
    "pp": 1,
}
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""
PLANS = """
import trisweep
assert trisweep.plan(*{job}, top=1).best.step_seconds > 0
assert trisweep.plan("22b").best.fits
assert trisweep.estimate([{row}]).best.fits
from cli.main import app
for words in (["plan", "22b"], ["plan", *{job}, "--as", "megatron-lm"], ["list", "model"]):
    app(words, standalone_mode=False)
"""


def run(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def heavy_modules() -> set[str]:
    """The modules of all dependencies but those that docs/how-to/install.md names for a plan."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed = {re.split("[<>=]", each)[0].lower() for each in stated}
    (line,) = re.findall(r"pip install (hydra-core .*)", (ROOT / "docs" / "how-to" / "install.md").read_text())
    light = set(line.split())
    assert light < needed
    owners = packages_distributions()
    return {name for name, names in owners.items() if (needed - light) & {each.lower() for each in names}}


@pytest.mark.slow
def test_a_plan_needs_only_the_packages_that_the_page_names(tmp_path: Path) -> None:
    heavy = heavy_modules()
    assert {"torch", "mlflow", "shap", "sklearn", "scipy", "pandas"} <= heavy
    done = run(BLOCKED.format(names=heavy) + PLANS.format(row=TABLE, job=ON_A_NODE), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torchrun" in done.stdout


def test_a_command_that_lacks_a_package_names_it_and_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['trisweep', 'plan', '22b']; from cli.main import main; main()"
    done = run(BLOCKED.format(names={"hydra"}) + code, tmp_path)
    said(done, "hydra")


@pytest.mark.slow
def test_a_sweep_that_lacks_a_package_has_written_nothing(tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['trisweep', 'sweep', 'smoke', '--here']; from cli.main import main; main()"
    done = run(BLOCKED.format(names={"submitit"}) + code, tmp_path)
    said(done, "submitit")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_search_returns_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "stderr", console.stderr)  # which --json changes for the rest of its process
    plans = face.plan(*SMALL, devices=64, top=3)
    printed = CliRunner().invoke(app, ["plan", *SMALL, "--devices", "64", "--top", "3", "--json"])
    families = json.loads(printed.stdout)["families"]
    assert [plan.layout for plan in plans] == [family["layout"] for family in families]
    assert [list(plan.overrides) for plan in plans] == [family["overrides"] for family in families]
    assert plans.best is plans[0]
    frame = plans.to_dataframe()
    assert set(families[0]) - {"departures", "overrides"} <= set(frame.columns)
    assert frame.predicted_step_seconds.tolist() == [family["predicted_step_seconds"] for family in families]


@pytest.mark.slow
def test_the_points_of_a_sweep_come_best_first_and_say_why_others_do_not_fit() -> None:
    points = face.plan("175b")
    rates = [point.model_flops_per_second_per_device or 0.0 for point in points if point.fits]
    assert rates == sorted(rates, reverse=True)
    assert len(points) > len(rates) > 0
    assert all(point.why_not for point in points if not point.fits)


@pytest.mark.slow
def test_a_table_is_priced_alike_from_a_file_a_frame_and_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame([TABLE, TABLE | {"micro_batch": 8, "num_gpus": None}])
    frame.to_csv(tmp_path / "in.csv", index=False)
    of_file, of_frame = face.estimate(tmp_path / "in.csv"), face.estimate(frame)
    of_rows = face.estimate([TABLE, TABLE | {"micro_batch": 8, "num_gpus": None}])
    assert of_file[0].step_seconds == of_frame[0].step_seconds == of_rows[0].step_seconds
    assert not of_frame[1].fits
    assert of_frame[1].why_not == of_rows[1].why_not == of_file[1].why_not
    with refused(face.UsageError):
        face.estimate([{"gpu": "A100-80GB"}])


@pytest.mark.thorough  # than docs/test_python
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own
def test_a_sweep_is_measured_and_loaded_with_its_ranking_and_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    points = "sweep.points=[{parallel.world_size: 1},{parallel.world_size: 3, parallel.tensor_parallel_size: 2}]"
    swept = face.sweep("smoke", points, here=True, quiet=True, search="grid")
    assert capfd.readouterr().out == ""
    results = face.load("runs/smoke-local")
    assert results.points == swept.points == face.load("smoke").points
    assert [trial.outcome for trial in results.trials] == ["COMPLETED", "INFEASIBLE"]
    assert results.trials[1].cause
    assert results.best is not None
    low, high = results.intervals[results.best.label] or (0.0, 0.0)
    assert low < results.best.values["throughput"] < high
    frame, steps = results.to_dataframe(), results.steps_dataframe()
    assert frame.trial_id.tolist() == [trial.trial_id for trial in results.trials]
    assert set(steps.trial_id) == {results.trials[0].trial_id}
    shown = results._repr_html_()
    assert results.best.label in shown
    assert shown.count("<tr>") == 1 + len(results.trials)


@pytest.mark.thorough  # than the page of docs, which sweeps a script too
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own
def test_a_script_is_swept_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.py").write_text("import sys\nprint('accuracy:', sys.argv[1])\n")
    command = f"{sys.executable} fit.py {{rate}}"
    results = face.sweep(command=command, rate=[0.25, 0.5], objective="accuracy", maximize=True, here=True, quiet=True)
    assert results.name == "fit"
    assert [point.values["accuracy"] for point in results.points] == [0.5, 0.25]
    with refused(face.UsageError):
        face.sweep(here=True)


@pytest.mark.slow
def test_a_log_is_diagnosed_as_the_command_does(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(example_log())
    (run,) = face.diagnose(tmp_path / "run.log", cluster="dgx-h100")
    assert run.verdict == "slower than its configuration explains"
    assert run.predicted_step_seconds is not None
    assert run.measured_step_seconds is not None
    assert run.predicted_step_seconds < run.measured_step_seconds
    assert run.suspects
    assert run.suspects[0]["says"] in html.unescape(run._repr_html_())
    assert run.proposals[0]["time_ratio"] < 1
    with refused(face.UsageError):
        face.diagnose(cluster="dgx-h100")


def test_a_notebook_gets_no_markup_out_of_a_name() -> None:
    from trisweep.rows import PredictedPlan, PredictedPlans

    shown = PredictedPlans([PredictedPlan.of("<script>", {"predicted_step_seconds": 1.0})])._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown


@pytest.mark.slow
def test_a_wrong_key_and_a_sweep_that_is_not_there_are_errors_of_the_face(tmp_path: Path) -> None:
    with refused(face.ConfigError, "modell"):
        face.plan(modell="x", cluster="frontier")
    with pytest.raises(face.InfeasiblePlan):
        face.plan(*SMALL, "model=gpt-1t", devices=8)
    with pytest.raises(face.TrisweepError):
        face.load(tmp_path)
