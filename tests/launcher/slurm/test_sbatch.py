"""What is handed to sbatch, as text. Regenerate the golden files by deleting them, and read the difference."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import ConfigError, UsageError
from conf.types.schema import Value
from launcher.control.rules import devices_charged
from launcher.slurm.controller import submit_controller
from launcher.slurm.sbatch import python_command
from launcher.slurm.workplace import JobArray, by_shape, device_hours, max_array_size
from sweeps.folder.submission import shape_of
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import load
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from tests.launcher.points_alone import submit_points
from tests.launcher.slurm.requested import requested
from tests.messages import refused

GOLDEN = Path(__file__).parent / "golden"
FOLDER = SweepFolder("/shared/runs/175b-site")
GPU = ["cluster=frontier", "cluster.num_nodes=4", "precision=bf16", "batch.global_batch_size=16"]
LAYOUTS: list[dict[str, Value]] = [
    {"parallel.world_size": 8},
    {"parallel.world_size": 8, "training.seed": 5},
    {"parallel.world_size": 16},
]

IN_IMAGE = ["slurm.container_image=/shared/image", "output_dir=/shared/runs", "cluster=frontier", "cluster.num_nodes=4"]
CASES = {
    "default": [],
    "frontier": ["slurm=frontier", "slurm.account=ABC123"],
    "gres": ["slurm.gpu_request=gres", "slurm.partition=gpu", "slurm.qos=high", "slurm.constraint=a100"],
    "whole-nodes": [
        "slurm.gpu_request=none",
        "slurm.array_parallelism=1",
        "+slurm.extra_sbatch.mem=0",
        "+slurm.extra_sbatch.wckey=test",
    ],
    "container": ["slurm.container_prefix=apptainer exec --rocm image.sif", "slurm.python=python3"],
    "apptainer": [*IN_IMAGE, "slurm.container=apptainer", "slurm.container_mounts=[/data,/scratch:/work]"],
    "charliecloud": [*IN_IMAGE, "slurm.container=charliecloud"],
    "enroot": [*IN_IMAGE, "slurm.container=enroot", "cluster=selene", "cluster.num_nodes=4"],
    "pyxis": [*IN_IMAGE, "slurm.container=pyxis", "slurm.container_mounts=[/data]"],
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_for_sbatch_is_pinned(case: str, record_of: RecordOf, slurm_of: SlurmOf) -> None:
    settings = slurm_of(*CASES[case], "slurm.max_array_size=100")
    shown = requested(Sweep(FOLDER, record_of(LAYOUTS, *GPU)), settings)
    text = "\n".join(f"===== {r.shape}, {r.device_hours:g} device-hours\n{r.sbatch}" for r in shown)
    text = text.replace(sys.executable, "/venv/bin/python")
    path = GOLDEN / f"{case}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was missing and has been written; read it")
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (["slurm.container=apptainer"], "slurm.container_image"),
        (["slurm.container_image=a.sif"], "slurm.container_image"),
        (
            ["slurm.container=pyxis", "slurm.container_image=a", "slurm.container_prefix=ch-run"],
            "slurm.container_prefix",
        ),
    ],
)
def test_half_a_container_is_refused(given: list[str], key: str, slurm_of: SlurmOf) -> None:
    with refused(ConfigError, key):
        slurm_of(*given)


def test_jobs_that_need_slurms_tools_stay_outside(slurm_of: SlurmOf) -> None:
    inside = slurm_of(*IN_IMAGE, "slurm.container=apptainer", "slurm.python=python3")
    assert "apptainer" in python_command(inside)
    assert python_command(inside.outside_container()) == sys.executable


def test_a_dry_run_needs_no_slurm_and_writes_nothing(
    record_of: RecordOf, slurm_of: SlurmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = SweepFolder(tmp_path / "sweep")
    (one,) = requested(Sweep(folder, record_of(LAYOUTS[:1], *GPU)), slurm_of())
    assert "#SBATCH --gpus-per-node=8" in one.sbatch
    assert not folder.path.exists()


def test_submitting_without_sbatch_is_one_message_and_nothing_is_written(
    record_of: RecordOf, slurm_of: SlurmOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = SweepFolder(tmp_path / "sweep")
    with refused(UsageError):
        submit_points(Sweep(folder, record_of(LAYOUTS, *GPU)), slurm_of())
    assert not folder.path.exists()


def test_ranks_on_a_cpu_cluster_ask_for_no_gpu(record_of: RecordOf, slurm_of: SlurmOf) -> None:
    (one,) = requested(Sweep(FOLDER, record_of([{"training.seed": 1}])), slurm_of("slurm.max_array_size=5"))
    assert "gpu" not in one.sbatch.replace("gpus_", "")


@pytest.mark.parametrize("name", ["exclusive", "--exclusive", "exclusiv"])
def test_whole_nodes_are_charged_however_the_option_is_written(
    name: str, record_of: RecordOf, slurm_of: SlurmOf
) -> None:
    (trial,) = record_of([{"parallel.world_size": 1}], *GPU).trials
    assert trial.experiment is not None
    assert devices_charged(trial.experiment, slurm_of()) == 1
    assert devices_charged(trial.experiment, slurm_of(f"slurm.extra_sbatch={{{name}: true}}")) == 8


def test_the_controller_asks_for_nothing_that_only_trials_need(
    folder: SweepFolder,
    record_of: RecordOf,
    slurm_of: SlurmOf,
    tools: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools(sbatch="cat $1 >&2; exit 1", srun="true", squeue="true", scontrol="true")
    monkeypatch.setattr("launcher.slurm.controller.snapshot_code", lambda *_: folder.code / "0a1b")
    of_trials = ("gpus_per_node", "gpus-per-task", "--gpus-per-socket", "cpus-per-gpu", "--mem_per_gpu", "mem-per-cpu")
    options = ", ".join(f"{name}: 4" for name in of_trials)
    settings = slurm_of(f"slurm.extra_sbatch={{{options}, comment: mine}}")
    with pytest.raises(UsageError) as caught:  # a stand-in for sbatch, whose complaint is the script
        submit_controller(Sweep(folder, record_of([{"training.seed": 1}])), settings, load().controller)
    assert not re.search("(gpus?|mem)-per|per-gpu", str(caught.value))


def test_without_slurm_arrays_are_split_at_slurms_own_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slurm_of: SlurmOf
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert max_array_size(slurm_of()) == 1001
    assert max_array_size(slurm_of("slurm.max_array_size=7")) == 7


def test_trials_of_one_shape_share_an_array_and_small_jobs_come_first(record_of: RecordOf) -> None:
    record = record_of([LAYOUTS[2], *LAYOUTS[:2]], *GPU)
    groups = by_shape(record.trials)
    assert [(str(shape), len(trials)) for shape, trials in groups.items()] == [("1 x 8", 2), ("2 x 8", 1)]
    array = JobArray(next(iter(groups)), (), False, [*record.trials] * 3)
    assert [len(part.trials) for part in array.parts(4)] == [4, 4, 1]


def test_device_hours_count_whole_nodes_where_nodes_are_taken_whole(record_of: RecordOf, slurm_of: SlurmOf) -> None:
    experiment = record_of([{"parallel.world_size": 2}], *GPU).trials[0].experiment
    assert experiment is not None
    assert shape_of(experiment).tasks_per_node == 2
    assert device_hours(experiment, slurm_of("slurm.time_limit_minutes=30")) == 1
    assert device_hours(experiment, slurm_of("slurm.time_limit_minutes=30", "slurm.gpu_request=none")) == 4
    assert device_hours(experiment, slurm_of("slurm=frontier", "slurm.time_limit_minutes=30")) == 4


@pytest.mark.parametrize(
    ("field", "value", "key"),
    [
        ("partition", "gpu\n#SBATCH --uid=0", "slurm.partition"),
        ("account", "a\rb", "slurm.account"),
        ("qos", "a\nb", "slurm.qos"),
        ("constraint", "a\x0bb", "slurm.constraint"),
        ("extra_sbatch", {"comment": "a\nrm -rf ~"}, "slurm.extra_sbatch.comment"),
        ("extra_sbatch", {"mem\nrm": 1}, "slurm.extra_sbatch.mem\nrm"),
        ("environment", {"A;rm -rf ~;B": "1"}, "slurm.environment"),
        ("environment", {"1A": "1"}, "slurm.environment"),
    ],
)
def test_no_value_writes_a_line_of_its_own_into_the_script(
    field: str, value: object, key: str, record_of: RecordOf, slurm_of: SlurmOf
) -> None:
    settings = slurm_of("slurm.max_array_size=5").model_copy(update={field: value})
    with refused(ConfigError, key):
        requested(Sweep(FOLDER, record_of(LAYOUTS[:1], *GPU)), settings)


@pytest.mark.parametrize("name", ["runs-%j", "runs\nrm"])
def test_a_folder_whose_name_slurm_would_rewrite_is_refused(name: str, record_of: RecordOf, slurm_of: SlurmOf) -> None:
    sweep = Sweep(SweepFolder(f"/shared/{name}/175b-site"), record_of(LAYOUTS[:1], *GPU))
    with refused(ConfigError, "output_dir"):
        requested(sweep, slurm_of("slurm.max_array_size=5"))
