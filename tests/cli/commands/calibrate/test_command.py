"""`trisweep calibrate` as typed, with a folder of configuration that may be written to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from benchmarks.replay.run import as_measured
from calibrate.calibration import Draft
from calibrate.refit_cluster import FinishedTrial, finished_trials, priced_runs
from cli.commands.calibrate.work import _write_file, propose
from conf.compose.load import load_cluster
from conf.folders import conf_dir, draft_first
from conf.types.cluster_spec import ClusterSpec
from sweeps.points.plan import plan_sweep
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.composed import composed
from tests.forked_command import run_forked
from tests.messages import said
from tests.results.conftest import ENVIRONMENT
from tests.waiting import wait_for

PROGRAM = "from cli.main import main; main()"
EVEN_ON_A_GPU_MACHINE = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of configuration with a file of cluster `local`, which holds before the package's."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "cluster").mkdir()
    shutil.copy(conf_dir() / "cluster" / "local.yaml", folder / "cluster")
    return folder


@pytest.fixture
def local_file(own: Path) -> Path:
    return own / "cluster" / "local.yaml"


def cluster_of(own: Path, name: str) -> ClusterSpec:
    with draft_first(own):
        return load_cluster(name)


def environment_with(own: Path) -> dict[str, str]:
    return {**os.environ, **EVEN_ON_A_GPU_MACHINE, "TRISWEEP_CONFIG_DIR": str(own), "COLUMNS": "160"}


def start(own: Path, cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, "calibrate", *arguments],
        cwd=cwd,
        env=environment_with(own),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(own: Path, cwd: Path, *arguments: str) -> tuple[int, str, str]:
    done = run_forked(("calibrate", *arguments), cwd, environment_with(own))
    return done.returncode, " ".join(done.stdout.split()), " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((), ""),
        (("cluster=nowhere",), "cluster"),
        (
            ("cluster=local", "--output", "../there"),
            "--output",
        ),
        (("cluster=local", "--output", "selene"), "selene.yaml"),
        (("cluster=frontier", "--here"), ""),
        (("cluster=local", "--here", "--nodes", "2"), ""),
        (("--from-results", "smoke"), ""),
        (("--from-results", "smoke", "cluster=selene"), ""),
        (("--from-results", "smoke", "--here"), "--here"),
        (("--propose", "smoke", "--output", "x"), "--output"),
        (("--from-results", "nothing"), "--from-results"),
        (("--propose", "smok"), "--propose"),
    ],
)
def test_what_cannot_be_done_is_one_message_and_leaves_nothing_behind(
    own: Path, tmp_path: Path, arguments: tuple[str, ...], key: str
) -> None:
    status, _, complained = run(own, tmp_path, *arguments)
    assert status == 2
    said(complained, key)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_says_what_would_be_measured_and_writes_nothing(own: Path, tmp_path: Path, local_file: Path) -> None:
    before = local_file.read_text()
    status, said, _ = run(own, tmp_path, "cluster=local", "--here", "--dry-run", "cluster.devices_per_node=2")
    assert status == 0
    assert "for cluster/local.yaml" in said
    assert "8 matrix products and 3 attentions in each of bf16, fp32" in said
    assert "Nothing was run or written." in said
    assert list(tmp_path.iterdir()) == []
    assert local_file.read_text() == before


@pytest.mark.slow
def test_a_dry_run_for_a_cluster_elsewhere_shows_the_job_and_the_tiers_it_reaches(own: Path, tmp_path: Path) -> None:
    status, said, complained = run(own, tmp_path, "cluster=frontier", "--dry-run")
    assert status == 0, complained
    assert "2 x 8 tasks on gpus would measure, for cluster/frontier.yaml" in said
    assert "link card: groups of 2 link node: groups of 2, 4 link slingshot: groups of 2" in said
    assert "#SBATCH --nodes=2" in said
    assert "#SBATCH --ntasks-per-node=8" in said
    assert "--gpu-bind=closest" in said  # conf/slurm/frontier.yaml, by its name
    assert "slurm.account: your default account is charged" in said
    refused, _, complained = run(own, tmp_path, "cluster=frontier", "--dry-run", "output_dir=/proc/x")
    assert refused == 2
    assert "output_dir = '/proc/x': cannot be written" in complained
    status, said, _ = run(own, tmp_path, "cluster=frontier", "--dry-run", "--nodes", "1")
    assert "slingshot" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough  # than calibrate/test_rates_job
@pytest.mark.slow
def test_ctrl_c_ends_the_ranks_and_leaves_the_file_as_it_was(own: Path, tmp_path: Path, local_file: Path) -> None:
    before = local_file.read_text()
    process = start(own, tmp_path, "cluster=local", "--here", "cluster.devices_per_node=2")
    progress = tmp_path / "runs" / "calibrate-local" / "progress"
    wait_for(progress.exists, 120)
    os.killpg(process.pid, signal.SIGINT)
    said, complained = process.communicate(timeout=90)
    assert process.returncode == 130, complained
    assert "Interrupted. What was running has been ended, and local.yaml is as it was." in " ".join(said.split())
    assert "Traceback" not in complained
    assert local_file.read_text() == before
    assert [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in (one.info["cmdline"] or [])] == []


def finish(folder: SweepFolder, trial: Trial, step_seconds: float) -> None:
    """As if the trial had been run, every rank on a core of its own."""
    assert trial.experiment
    measured = as_measured(trial.experiment, step_seconds, 1.0)
    folder.trial(trial.trial_id).write_measurement(measured.model_copy(update={"environment": ENVIRONMENT}))


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """The smoke sweep, whose trials took three times what was predicted."""
    record = plan_sweep(composed(["sweep=smoke", "cluster=local"]), proxy=False, git_sha="")
    folder = SweepFolder(tmp_path / "runs" / "smoke-local")
    folder.write_record(record)
    for trial in record.trials:
        if trial.estimate:
            finish(folder, trial, 3 * trial.estimate.step_seconds)
    return tmp_path


@pytest.mark.slow
def test_finished_trials_refine_the_file_with_the_errors_before_and_after(
    own: Path, measured: Path, local_file: Path
) -> None:
    before = cluster_of(own, "local")
    status, said, complained = run(own, measured, "--from-results", "smoke")
    assert status == 0, complained
    assert "Mean error of the predicted step time over 5 trials: 66.7 % before" in said
    assert "Each of them predicted from the others:" in said
    after = cluster_of(own, "local")
    assert after.efficiency.kernel_seconds > 2 * before.efficiency.kernel_seconds
    assert "attention: left as it was, hardly any effect here" in said
    assert after.links == before.links
    assert after.device == before.device
    text = local_file.read_text()
    assert "fitted to 5 trials of sweep smoke" in text.splitlines()[0]
    assert "measured on made-up-host with torch 2.0.0" in text.splitlines()[0]
    assert "# kernel_seconds fitted: 5 trials of sweep smoke, mean error 66.7 % ->" in text
    assert after.efficiency.source.endswith(f"; before: {before.efficiency.source}")


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_file_of_the_package_that_was_rewritten_is_called_so(
    is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody named it: --from-results takes the cluster of the trials, and in a checkout that is a tracked file."""
    path = (conf_dir() if is_ours else tmp_path) / "cluster" / "local.yaml"
    new = Draft(load_cluster("local"), "local", (), (), "")
    monkeypatch.setattr(Draft, "write", lambda _: path)
    assert _write_file(new) == path
    assert ("the package's own file in this checkout" in " ".join(capsys.readouterr().out.split())) == is_ours


@pytest.mark.slow
def test_a_dry_run_of_the_refinement_writes_nothing(own: Path, measured: Path, local_file: Path) -> None:
    before = local_file.read_text()
    torn = SweepFolder(measured / "runs" / "smoke-old")  # of another sweep, whose name begins alike
    torn.path.mkdir()
    torn.record.write_text("{")
    status, said, _ = run(own, measured, "--from-results", "smoke", "cluster=local", "--dry-run")
    assert status == 0
    assert "Nothing was written." in said
    assert local_file.read_text() == before
    status, _, complained = run(own, measured, "--from-results", "smoke", "cluster=selene")
    assert status == 2
    assert str(torn.record) in complained


def test_one_trial_is_enough_to_learn_from(own: Path, measured: Path, local_file: Path) -> None:
    before = local_file.read_text()
    for measurement in sorted(measured.glob("runs/smoke-local/trials/*/measurement.json"))[1:]:
        measurement.unlink()
    status, said, complained = run(own, measured, "--from-results", "smoke")
    assert status == 0, complained
    assert "Too few trials to leave one out" in said
    assert local_file.read_text() != before


def test_a_sweep_of_which_nothing_was_measured_leaves_the_file_alone(
    own: Path, measured: Path, local_file: Path
) -> None:
    before = local_file.read_text()
    for measurement in measured.glob("runs/smoke-local/trials/*/measurement.json"):
        measurement.unlink()
    status, _, complained = run(own, measured, "--from-results", "smoke")
    assert status == 2
    assert "No trial has a step time to fit to" in complained
    assert local_file.read_text() == before


def test_trials_of_another_program_are_predicted_at_its_costs_as_they_were_when_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = composed(["sweep=smoke", "cluster=local", "trainer=megatron-lm", "trainer.command=[pretrain_gpt.py]"])
    record, folder = plan_sweep(asked, proxy=False, git_sha=""), SweepFolder(tmp_path)
    folder.write_record(record)
    for trial in record.trials:
        if trial.estimate:
            finish(folder, trial, trial.estimate.step_seconds)
    finished = finished_trials(Sweep.stored_in(folder), asked.settings.cluster)
    proposed: list[FinishedTrial] = []

    def first(cluster: ClusterSpec, trials: Sequence[FinishedTrial]) -> list[int]:
        proposed.extend(trials)
        return [0]

    monkeypatch.setattr("cli.commands.calibrate.work.telling_runs", first)
    propose(asked)
    for trials in (finished, proposed):
        assert list(priced_runs(asked.settings.cluster, trials).log_ratios()) == pytest.approx([0.0] * 5, abs=1e-9)


TABLE = """cluster,layers,hidden,heads,seq,num_gpus,tp,pp,micro_batch,global_batch,precision,iter_time_s
selene,96,12288,96,2048,512,8,16,1,1536,bf16,30
selene,48,8192,64,2048,64,8,1,4,512,bf16,40
"""


@pytest.mark.slow
def test_two_rows_that_somebody_measured_move_all_predictions_for_their_trainer(own: Path, tmp_path: Path) -> None:
    table = tmp_path / "ours.csv"
    table.write_text(TABLE)
    status, said, complained = run(own, tmp_path, "--from-csv", str(table), "--output", "ours")
    path = own / "cluster" / "ours.yaml"
    try:
        assert status == 0, complained
        assert "2 rows of ours.csv, selene as its file says now." in said
        assert "fitted to 2 rows of ours.csv, measured where the table says" in path.read_text().splitlines()[0]
        new, old = cluster_of(own, "ours"), cluster_of(own, "selene")
        level = new.efficiency.levels["megatron-core"]
        assert new.efficiency == old.efficiency.model_copy(update={"levels": {"megatron-core": level}})
        assert (level.num_runs, level.factor > 1.1) == (2, True)
        assert f"All predictions for megatron-core take {level.factor:.3g} times what the constants say; from 5" in said
        steps = {}
        for cluster in ("selene", "ours"):
            (tmp_path / "table.csv").write_text(TABLE.replace("selene", cluster))
            rows = json.loads(run_forked(("estimate", "table.csv", "--json"), tmp_path, environment_with(own)).stdout)
            steps[cluster] = [row["predicted_step_seconds"] for row in rows["rows"]]
            words = "After 2 of your runs" if cluster == "ours" else "Before any of your runs: most first runs take"
            assert all(row["runs_take"].startswith(words) for row in rows["rows"])
        assert steps["ours"] == pytest.approx([level.factor * each for each in steps["selene"]])
    finally:
        path.unlink(missing_ok=True)


def test_the_runs_to_measure_first_are_proposed_with_a_command_that_measures_one_of_them(
    own: Path, tmp_path: Path
) -> None:
    status, said, complained = run(own, tmp_path, "--propose", "smoke")
    assert status == 0, complained
    assert "Of 5 points of sweep smoke, their steps would say most of the constants of local" in said
    assert "trisweep sweep smoke parallel.world_size=" in said
    assert said.endswith("Then: trisweep calibrate --from-results smoke")
    assert "tp1-pp1-dp" in said


def test_what_is_proposed_is_of_the_cluster_that_was_named(own: Path, tmp_path: Path) -> None:
    _, said, _ = run(own, tmp_path, "--propose", "175b", "cluster=selene")
    assert "trisweep sweep 175b cluster=selene parallel.tensor_parallel_size=" in said
    assert said.endswith("Then: trisweep calibrate --from-results 175b cluster=selene")


@pytest.mark.parametrize(
    ("text", "arguments", "complaint"),
    [
        (
            TABLE.replace("iter_time_s", "iter_time_ms"),
            (),
            "that can be priced: Columns that were not read: iter_time_ms (did you mean iter_time_s?)",
        ),
        (TABLE, ("cluster=frontier",), "No row of ours.csv is of cluster frontier; its rows are of selene"),
        (TABLE.replace(",30", ",thirty").replace(",40", ","), (), "line 2: iter_time_s = 'thirty': is not a number"),
        ("\n" + TABLE.replace(",30", ",thirty").replace(",40", ","), (), "line 3: iter_time_s = 'thirty'"),
        (TABLE, ("--from-results", "smoke"), "--from-results and --from-csv were given"),
        (TABLE, ("cluster=selene", "clustr=frontier"), "clustr=frontier was given with --from-csv, but the rows"),
        (TABLE, ("--nodes", "7", "--here"), "--nodes and --here were given, but --from-csv measures nothing"),
        (TABLE.replace("selene,48", "frontier,48").replace("bf16,40", "fp16,40"), (), "has rows of frontier, selene"),
        ("a,b\n1,2\n", (), "lacks the columns"),
        (
            TABLE.replace(",30", ",30000").replace(",40", ",40000"),
            (),
            "line 2: iter_time_s = '30000': is a step of 3e+04 s, where",
        ),  # milliseconds
    ],
)
def test_a_table_that_says_nothing_is_refused_in_a_sentence(
    own: Path, tmp_path: Path, text: str, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "ours.csv").write_text(text)
    status, _, complained = run(own, tmp_path, "--from-csv", "ours.csv", "--dry-run", *arguments)
    assert status == 2
    assert complaint in complained
    assert "Traceback" not in complained
