"""`trisweep plan` of a sweep; its searches are in test_search."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands.plan.answer import print_best
from conf.compose.load import compose
from conf.overrides import Overrides
from sweeps.points.plan import plan_sweep
from tests.cli.conftest import Command
from tests.messages import said


@pytest.mark.slow
def test_cfg_prints_the_composed_configuration(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("plan", "175b", "parallel.tensor_parallel_size=8", "--cfg", cwd=tmp_path)
    assert done.returncode == 0
    assert "tensor_parallel_size: 8" in done.stdout
    assert "hidden_size: 12288" in done.stdout


def test_cfg_prints_no_password(tmp_path: Path, trisweep: Command) -> None:
    address = "tracking.uri=https://ada:secret@runs.example"
    done = trisweep("plan", "smoke", "tracking=server", address, "--cfg", cwd=tmp_path)
    assert "uri: https://***@runs.example" in done.stdout
    assert "secret" not in done.stdout


@pytest.mark.slow
def test_any_cluster_gets_an_answer_that_ends_with_the_best_point_and_what_to_do_next(
    tmp_path: Path, trisweep: Command
) -> None:
    done = trisweep("plan", "175b", "cluster=selene", cwd=tmp_path, COLUMNS="80")
    said = " ".join(done.stdout.split())
    assert "selene has 3,072; 2,560 is the largest number" in said
    assert "cannot exist" not in said
    last = " ".join(done.stdout.splitlines()[-10:])
    assert "Best: tp4-pp8-dp80-mb1-gb5120-zero1-selective on 2,560 devices" in last
    assert "parallel.pipeline_parallel_size=8" in last
    assert "--search finds " in last
    assert "faster." in last
    assert "trisweep plan 175b cluster=selene parallel.world_size=2560 --search --explain best" in last


@pytest.mark.parametrize("has_slurm", [False, True])
def test_the_command_that_a_plan_ends_with_is_taken_on_this_machine(
    has_slurm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if has_slurm:
        (tmp_path / "sbatch").write_text("")
        (tmp_path / "sbatch").chmod(0o755)
    composition = compose(Overrides.parse(["sweep=smoke"]))
    print_best(composition, plan_sweep(composition, proxy=False, git_sha=""))
    assert ("trisweep sweep smoke cluster=local --dry-run" in capsys.readouterr().out) is has_slurm


@pytest.mark.parametrize(("objective", "searches"), [("loss", False), ("[loss,step_time]", True)])
def test_who_seeks_a_loss_alone_is_not_sent_to_a_search_of_layouts(
    objective: str, searches: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    composition = compose(Overrides.parse(["sweep=smoke", f"search.objective={objective}"]))
    print_best(composition, plan_sweep(composition, proxy=False, git_sha=""))
    said = capsys.readouterr().out
    assert "which is measured and never predicted" in " ".join(said.split())
    assert ("--search --explain best" in said) is searches
    assert "trisweep sweep smoke" in said


def test_a_mixed_job_is_not_sent_to_a_search_that_refuses_it(capsys: pytest.CaptureFixture[str]) -> None:
    composition = compose(Overrides.parse(["sweep=smoke", "mixed=selene:8+dgx-h100:8"]))
    print_best(composition, plan_sweep(composition, proxy=False, git_sha=""))
    assert "--search" not in capsys.readouterr().out


def test_points_that_cannot_exist_are_counted_by_their_cause(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("plan", "175b", "cluster=aurora", cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert "55 points cannot exist; of these, one says: batch.global_batch_size = 5120" in said
    assert "19 points cannot exist; of these, one says: parallel.tensor_parallel_size = 8" in said
    assert len(done.stdout.splitlines()) < 40
    assert "--search finds " in said


def test_a_plan_of_an_empty_name_is_refused(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("plan", "", cwd=tmp_path)
    said(done)
