"""`python -m train_core`, as people and torchrun start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import train_core.__main__
from conf.errors import EXIT_FAILED, UsageError
from tests.composed import compose_tree
from tests.forked_command import run_forked
from train_core.checkpoints.checkpoint_folder import path_of
from train_core.job import training_folder
from train_core.process import lock
from train_core.trial.folder import TrialFolder

SMALL = ["model.num_layers=2", "training.num_steps=3", "training.num_warmup_steps=1", "data.max_bytes=20000"]
TENSOR_2 = ["parallel.world_size=2", "parallel.tensor_parallel_size=2"]


def run(folder: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *launcher, "-m", "train_core", *arguments, f"output_dir={folder}/runs", *SMALL]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_alone_it_supervises_its_ranks_and_leaves_a_trial_folder(tmp_path: Path) -> None:
    completed = run(tmp_path, *TENSOR_2)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith(f"Folder: {tmp_path}/runs/train/tiny-tp2-pp1-dp1")
    assert completed.stdout.count("step ") >= 3
    assert "COMPLETED" in completed.stdout
    (trial,) = (tmp_path / "runs" / "train").iterdir()
    assert trial.name.startswith("tiny-tp2-pp1-dp1")
    assert (trial / "measurement.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}, "it wrote outside its output folder"


@pytest.mark.thorough  # than hydra's configuration
@pytest.mark.slow
def test_hydra_sweeps_over_overrides(tmp_path: Path) -> None:
    completed = run(tmp_path, "-m", "batch.micro_batch_size=1,2")
    assert completed.returncode == 0, completed.stderr
    assert len(list((tmp_path / "runs" / "train").glob("*/measurement.json"))) == 2


@pytest.mark.slow
def test_hydra_prints_the_configuration(tmp_path: Path) -> None:
    completed = run(tmp_path, "--cfg", "job")
    assert "tensor_parallel_size: 1" in completed.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough  # than training/test_other_layout
@pytest.mark.slow
def test_another_layout_goes_on_after_the_checkpoint_that_is_named(tmp_path: Path) -> None:
    assert run(tmp_path, *TENSOR_2, "checkpoint.every_steps=2").returncode == 0
    (trial,) = (tmp_path / "runs" / "train").iterdir()
    saved = trial / "checkpoints" / "step-000002"
    load = [f"checkpoint.load={saved}", "checkpoint.resume=true"]
    completed = run(tmp_path, *load)
    assert completed.stderr == f"going on after step 2 of {saved}\n"
    assert "step    3/3" in completed.stdout
    assert "step    2/3" not in completed.stdout
    assert "\nno metrics here of steps 1-2, which an earlier run did" in completed.stdout
    refused = run(tmp_path, *load, "batch.global_batch_size=16")
    assert refused.returncode == EXIT_FAILED
    assert "FAILED: batch.global_batch_size = 16: is not the 8 of the training in the checkpoint" in refused.stdout
    assert f"The same command starts again after {saved}; checkpoint=regular saves" in refused.stdout


@pytest.mark.slow
def test_torchrun_starts_one_rank_each(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    completed = run(tmp_path, *TENSOR_2, launcher=launcher)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("COMPLETED") == 1
    (trial,) = (tmp_path / "runs" / "train").iterdir()
    assert len((trial / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_a_launcher_prepare_no_tokens_before_they_have_met(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 then does for all; a text that every rank reads would be read as often as there are ranks."""
    seat = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in seat.items():
        monkeypatch.setenv(name, value)
    ran = list[Path]()
    monkeypatch.setattr(train_core.__main__, "prepare", None)
    monkeypatch.setattr(train_core.__main__, "_write_trial", lambda *_, **__: None)
    monkeypatch.setattr(train_core.__main__, "run_trial_as_rank", lambda folder, on_step: ran.append(folder))
    train_core.__main__._run(compose_tree([*TENSOR_2, f"output_dir={tmp_path}"]))
    assert len(ran) == 1


def test_a_training_that_runs_keeps_its_trial_from_a_second_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A longer training goes on in the same folder, though not while the shorter one runs there."""
    monkeypatch.setattr(lock, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(train_core.__main__, "prepare", lambda *_: None)
    monkeypatch.setattr(train_core.__main__, "run_trial_here", lambda *_, **__: None)
    command = ["checkpoint=regular", f"output_dir={tmp_path}"]
    train_core.__main__._run(compose_tree([*command, "training.num_steps=120"]))
    (trial,) = (TrialFolder(path) for path in (tmp_path / "train").iterdir())
    path_of(trial.checkpoints, 48).mkdir(parents=True)
    monkeypatch.setattr(training_folder, "last_whole", lambda folder, **_: path_of(folder, 48))
    written = trial.trial.read_bytes()
    longer = compose_tree([*command, "training.num_steps=300"])
    capsys.readouterr()
    with lock.hold_lock(trial.running_lock), pytest.raises(UsageError, match="Another process is running the trial"):
        train_core.__main__._run(longer)
    assert (trial.trial.read_bytes(), capsys.readouterr().out) == (written, "")
    train_core.__main__._run(longer)
    assert b'"schedules"' in trial.trial.read_bytes()
    assert "Extended at step 48" in capsys.readouterr().out


@pytest.mark.slow
def test_a_refusal_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    wrong = (f"output_dir={tmp_path}/runs", "data.path=/nowhere")
    completed = run_forked(wrong, tmp_path, os.environ, "train_core.__main__")
    assert (completed.returncode, len(completed.stderr.splitlines())) == (2, 1)
    assert completed.stderr.startswith("error: data.path = '/nowhere'")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("parallel.tensor_parallel_size=3", "parallel.world_size = 1"),
        ("data.path=/nowhere", "data.path = '/nowhere'"),
        ("data.cache_dir=/proc/nowhere", "data.cache_dir = '/proc/nowhere'"),
        ("training.num_steps=0", "training.num_steps = 0"),
        ("model.vocab_size=100", "model.vocab_size = 100"),
        ("parallel.zero_stage=4", "parallel.zero_stage = 4"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_written(
    tmp_path: Path, override: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        train_core.__main__._train(compose_tree([f"output_dir={tmp_path}/runs", override]))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {key}"), said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_the_submitters_imports_leave_torch_alone() -> None:
    modules = "train_core.trial.measurement, train_core.trial.folder, costs, train_core.data.tokens"
    code = f"import sys, {modules}, train_core.job.trial; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
