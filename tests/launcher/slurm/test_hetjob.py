"""A job over several types of devices, as text for sbatch. Regenerate the golden file by deleting it, and read it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conf.errors import ConfigError
from conf.types.sites import SlurmComponent
from launcher.allocation.sweep import allocation_request
from launcher.slurm.verdict import first_ranks
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord
from tests.composed import load
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from tests.launcher.slurm.requested import requested
from tests.messages import refused

GOLDEN = Path(__file__).parent / "golden" / "mixed.txt"
FOLDER = SweepFolder("/shared/my runs/175b-site")
GPU = ("cluster=selene", "precision=bf16", "batch.global_batch_size=16", "mixed=dgx-h100:8+selene:16")
PIPELINE = {"parallel.world_size": 24, "parallel.pipeline_parallel_size": 3}


@pytest.fixture(scope="session")
def mixed_record(record_of: RecordOf) -> SweepRecord:
    return record_of([PIPELINE, PIPELINE | {"training.seed": 5}], "model.num_layers=3", *GPU)


def test_the_text_of_a_heterogeneous_job_is_pinned_and_each_trial_has_one(
    mixed_record: SweepRecord, slurm_of: SlurmOf
) -> None:
    settings = slurm_of(
        "slurm.partition=a100",
        "slurm.gpu_type=a100",
        "+slurm.extra_sbatch.mem=0",
        "+slurm.components.dgx-h100={partition: h100, gpu_type: h100, cpus_per_task: 4, extra_sbatch: {mem: 9G}}",
    )
    first, second = requested(Sweep(FOLDER, mixed_record), settings)
    assert first.sbatch == second.sbatch
    assert (str(first.shape), first.device_hours) == ("1 x 8 + 2 x 8", 12)
    text = first.sbatch.replace(sys.executable, "/venv/bin/python")
    if not GOLDEN.exists():
        GOLDEN.write_text(text)
        pytest.fail(f"{GOLDEN} was missing and has been written; read it")
    assert text == GOLDEN.read_text()


def test_whole_nodes_are_charged_where_that_component_takes_them_whole(
    mixed_record: SweepRecord, slurm_of: SlurmOf
) -> None:
    whole = slurm_of("slurm.gpu_request=none", "slurm.time_limit_minutes=60")
    assert [request.device_hours for request in requested(Sweep(FOLDER, mixed_record), whole)] == [24, 24]


@pytest.mark.parametrize("payload", ["x; touch PWNED", "$(touch PWNED)", "`touch PWNED`", "'; touch PWNED; '"])
def test_no_value_runs_anything_in_the_jobs_shell(
    payload: str, mixed_record: SweepRecord, slurm_of: SlurmOf, tmp_path: Path
) -> None:
    component = SlurmComponent(partition=payload, gpu_type=payload, extra_sbatch={"comment": payload})
    values = {"srun_args": ("--comment", payload), "environment": {"A": payload}, "components": {"dgx-h100": component}}
    folder = SweepFolder(f"/shared/{payload}")
    (shown, _) = requested(Sweep(folder, mixed_record), slurm_of().model_copy(update=values))
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\necho srun was called; exit 3\n")
    srun.chmod(0o755)
    environment = {"PATH": f"{srun.parent}:/usr/bin:/bin", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[1-2]"}
    script = shown.sbatch.replace(">&2; exit 1", ">&2")  # there is no code here that the job could find unchanged
    ended = subprocess.run(
        ["bash"], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, "srun was called\n")  # the job ends as its step did
    assert first_ranks(ended.stderr) == {"n1": 8, "n2": 8}
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_line_break_in_a_components_value_is_refused(mixed_record: SweepRecord, slurm_of: SlurmOf) -> None:
    broken = {"components": {"dgx-h100": SlurmComponent(partition="h100\n#SBATCH --account=other")}}
    with refused(ConfigError, "slurm.partition"):
        requested(Sweep(FOLDER, mixed_record), slurm_of().model_copy(update=broken))


def test_an_allocation_has_nodes_of_one_type_and_takes_no_mixed_trial(
    mixed_record: SweepRecord, slurm_of: SlurmOf
) -> None:
    settings = load(["launcher=allocation", "cluster=selene"])
    with refused(ConfigError, "launcher.kind"):
        allocation_request(Sweep(FOLDER, mixed_record), slurm_of(), settings.launcher, settings.cluster)


def test_the_ranks_on_a_node_are_counted_from_its_component() -> None:
    log = "trisweep: ranks from 0 on are those of node[3-4]\ntrisweep: ranks from 8 on are those of node1\n"
    assert first_ranks(log) == {"node3": 0, "node4": 0, "node1": 8}
    assert first_ranks("srun: error: node1: task 0: Killed\n") == {}
