"""The commands as a person runs them: real processes, their output and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.forked_command import run_forked

Command = Callable[..., subprocess.CompletedProcess[str]]
TOOLS = ("git", "env")


@pytest.fixture(scope="module")
def no_slurm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose PATH holds no Slurm, whatever the machine has."""
    tools = tmp_path_factory.mktemp("bin")
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool) or f"/usr/bin/{tool}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**kept, "PATH": str(tools), "COLUMNS": "100"}


@pytest.fixture(scope="module")
def trisweep(no_slurm: dict[str, str]) -> Command:
    def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_forked(arguments, cwd, {**no_slurm, **environment})

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, trisweep: Command) -> Path:
    """The smoke sweep, measured."""
    folder = tmp_path_factory.mktemp("finished")
    done = trisweep("sweep", "smoke", "--here", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "175"], r"sweep = '175': is not an option of this group\. Did you mean 175b\?"),
        (["sweep", "175b", "cluster=frontir"], r"cluster = 'frontir': .*Did you mean frontier\?"),
        (["plan", "175b", "sweep.max_trails=3"], r"sweep\.max_trails = '3': .*Did you mean sweep\.max_trials\?"),
        (["plan", "175b", "batch.micro_batch_size=0"], r"batch\.micro_batch_size = 0: input should be greater than 0"),
        (["plan", "175b", "cluster.device.memory_bytes=-1"], r"cluster\.device\.memory_bytes = -1: "),
        (["sweep", "175b", "cluster=frontier"], r"there is no sbatch on the PATH"),
        (["status", "175b"], r"No sweep 175b has been started in .*Start it with `trisweep sweep 175b`"),
        (["report", "22b"], r"No sweep 22b has been started in"),
        (["sweep", "smoke", "--here", "data.path=/nonexistent.txt"], r"data\.path = '/nonexistent\.txt'"),
        (["ui"], r"There is no MLflow store"),
        (["train", "modle=tiny"], r"modle = 'tiny': is not a key or group.*Did you mean model\?"),
        (["train", "parallel.world_size=16"], r"world_size = 16: is more than the 8 devices of cluster local"),
        (["train", "data=megatron", "data.path=/nowhere"], r"data\.path = '/nowhere': /nowhere\.idx: No such file"),
        (["train", "--name", "x"], r"--name and --here apply only to a training from a sweep"),
        (["train", "--from-best", "smoke", "--here"], r"No sweep smoke has been started in .*`trisweep sweep smoke`"),
        (["sweep", "smoke", "--there"], r"No such option"),
    ],
)
def test_bad_input_is_one_message_exit_code_2_and_nothing_written(
    arguments: list[str], message: str, tmp_path: Path, trisweep: Command
) -> None:
    done = trisweep(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(message, " ".join(done.stderr.split())), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "empty"), (b"\x00\x01\x02\xff\xfe" * 400, "not text"), (None, "no text|empty")]
)
def test_data_that_is_empty_or_not_text_stops_the_sweep_at_once(
    content: bytes | None, message: str, tmp_path: Path, trisweep: Command
) -> None:
    data = tmp_path / "data"
    if content is None:
        data.mkdir()
    else:
        data.write_bytes(content)
    work = tmp_path / "work"
    work.mkdir()
    done = trisweep("sweep", "smoke", "--here", f"data.path={data}", cwd=work)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert "data.path" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(work.rglob("*.json"))


def test_an_output_folder_that_is_a_file_is_said_so(tmp_path: Path, trisweep: Command) -> None:
    (tmp_path / "taken").write_text("mine")
    done = trisweep("sweep", "smoke", "--here", "output_dir=taken", cwd=tmp_path)
    assert done.returncode == 2
    assert "output_dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "taken").read_text() == "mine"


def test_cfg_prints_the_composed_configuration(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("plan", "175b", "parallel.tensor_parallel_size=8", "--cfg", cwd=tmp_path)
    assert done.returncode == 0
    assert "tensor_parallel_size: 8" in done.stdout
    assert "hidden_size: 12288" in done.stdout


def test_a_dry_run_needs_no_slurm_and_writes_nothing(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("sweep", "175b", "cluster=frontier", "slurm.account=ABC123", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GPU-hours at most" in done.stdout
    texts = done.stdout.split("#!/bin/bash")[1:]
    assert len(texts) == len({re.search(r"--nodes=(\d+)", text)[1] for text in texts})  # type: ignore[index]
    for text in texts:
        assert "--ntasks-per-node=8" in text
        assert "--account=ABC123" in text
        assert "module load aws-ofi-rccl" in text
        assert "--gpu-bind=closest" in text
    assert list(tmp_path.iterdir()) == []


def test_the_former_name_of_rehearse_says_what_to_use(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("dry-run", "175b", "--format", "json", cwd=tmp_path)
    assert done.returncode == 2
    assert "Use `trisweep rehearse`" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["plan", "175b"], ["status", "smoke"], ["rehearse", "model=tiny", "--format=json"]]
)
def test_login_node_commands_import_neither_torch_nor_mlflow(
    arguments: list[str], finished: Path, no_slurm: dict[str, str]
) -> None:
    code = (
        "import sys; sys.argv = ['trisweep', *sys.argv[1:]]\n"
        "from cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print('heavy:', [name for name in ('torch', 'mlflow', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=finished,
        env=no_slurm,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_submitting_imports_neither_torch_nor_mlflow(tmp_path: Path) -> None:
    code = (
        "import sys, launcher.sweep, sweeps.plan; print([n for n in ('torch', 'mlflow', 'pandas') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_sweep_measures_every_point_and_leaves_report_and_mlflow(finished: Path) -> None:
    folder = finished / "runs" / "smoke-local"
    measured = [json.loads(path.read_text()) for path in folder.glob("trials/*/measurement.json")]
    assert [one["outcome"] for one in measured] == ["COMPLETED"] * 5
    losses = [one["performance"]["final_loss"] for one in measured]
    assert max(losses) - min(losses) < 1e-4 * max(losses)
    for suffix in ("md", "csv", "html"):
        assert (folder / f"report.{suffix}").stat().st_size > 0
    assert (finished / "runs" / "mlflow.db").exists()


def test_a_finished_sweep_is_not_run_again(finished: Path, trisweep: Command) -> None:
    folder = finished / "runs" / "smoke-local"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/measurement.json")}
    done = trisweep("sweep", "smoke", "--here", cwd=finished)
    assert done.returncode == 0
    assert "started" not in done.stdout
    assert "0 runs written" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/measurement.json")} == before


def test_the_best_plan_trains_on_and_its_losses_are_in_mlflow(finished: Path, trisweep: Command) -> None:
    done = trisweep("train", "--from-best", "smoke", "--here", "training.num_steps=12", cwd=finished)
    assert done.returncode == 0, done.stderr
    assert "Best plan: tp" in done.stdout
    assert "step 12 of 12, loss " in done.stdout
    assert "MLflow: training smoke-local is up to date" in done.stdout
    query = (
        "SELECT metrics.step FROM metrics JOIN runs USING (run_uuid)"
        " WHERE runs.name = 'training smoke-local' AND metrics.key = 'steps/loss' ORDER BY metrics.step"
    )
    with closing(sqlite3.connect(finished / "runs" / "mlflow.db")) as store:
        assert [step for (step,) in store.execute(query)] == list(range(1, 13))


def test_status_shows_every_trial_within_80_columns(finished: Path, trisweep: Command) -> None:
    done = trisweep("status", "smoke", cwd=finished, COLUMNS="80")
    assert done.returncode == 0
    assert "5 COMPLETED, 1 INFEASIBLE" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_corrupt_measurement_is_put_aside_and_the_rest_is_reported(
    finished: Path, tmp_path: Path, trisweep: Command
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    victim = next((copy / "runs" / "smoke-local" / "trials").glob("tp1-pp1-dp1*")) / "measurement.json"
    victim.write_text('{"outcome": "COMPL')
    done = trisweep("report", "smoke", cwd=copy)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(list(victim.parent.glob("measurement.corrupt-*.json"))) == 1
    assert done.stdout.count("COMPLETED") == 4
    text = (copy / "runs" / "smoke-local" / "report.md").read_text()
    assert "corrupt" in text


def test_a_damaged_sweep_record_is_said_so(finished: Path, tmp_path: Path, trisweep: Command) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "runs" / "smoke-local" / "sweep.json").write_text("{")
    done = trisweep("status", "smoke", cwd=copy)
    assert done.returncode == 2
    assert "sweep.json cannot be read" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_completion_offers_sweeps_and_options(tmp_path: Path, trisweep: Command) -> None:
    asked = {"_TRISWEEP_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    sweeps = trisweep(cwd=tmp_path, COMP_WORDS="trisweep plan 1", **asked)
    assert set(sweeps.stdout.split()) == {"175b", "1t"}
    clusters = trisweep(cwd=tmp_path, COMP_WORDS="trisweep plan 175b cluster=f", **{**asked, "COMP_CWORD": "3"})
    assert "frontier" in clusters.stdout
