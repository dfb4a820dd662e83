"""Jobs of a PBS machine: what qsub is asked for, and what qstat's words and the files of a job come to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import ConfigError, UsageError
from launcher.command_trainer.process import seat_in_slurm, without_seat
from launcher.job_payload import RUN_IN_SLURM, FolderWork
from launcher.slurm.job_status import cancel_jobs, standings
from launcher.slurm.pbs import PbsExecutor
from launcher.slurm.query import SlurmSilent
from launcher.slurm.task import take_seat
from launcher.slurm.workplace import max_array_size
from sweeps.folder.submission import JobShape, Submission, read_submission
from tests.composed import load
from tests.launcher.conftest import SlurmOf, Tools
from tests.messages import refused
from train_core.trial.folder import TrialFolder

SHAPE = JobShape(num_nodes=2, tasks_per_node=4, uses_gpus=True)
RUNNING = "Job Id: 7.head\n    Job_Name = {name}\n    job_state = R\n    exec_host = node1/0*4+node2/0*4\n"


@pytest.fixture
def executor(tmp_path: Path, slurm_of: SlurmOf) -> Callable[..., PbsExecutor]:
    def make(*overrides: str) -> PbsExecutor:
        slurm = slurm_of("slurm.scheduler=pbs", "slurm.partition=prod", "slurm.account=lab", *overrides)
        return PbsExecutor(slurm, "trisweep-test", tmp_path / "code", tmp_path / "logs")

    return make


def test_a_request_is_one_chunk_a_node_with_the_sites_own_resources(executor: Callable[..., PbsExecutor]) -> None:
    made = executor(
        "slurm.pbs_resources=['filesystems=home:flare']",
        "slurm.cpus_per_task=8",
        "slurm.extra_sbatch={-k: doe, V: false, h: true}",
    )
    command, *script = made.text(SHAPE, 1).splitlines()
    request = "select=2:mpiprocs=4:ncpus=32:ngpus=4,place=scatter,walltime=00:30:00,filesystems=home:flare"
    assert f"-l {request} " in command
    assert "-q prod -A lab -k doe -h /" in command
    (started,) = [line for line in script if line.startswith("mpiexec")]
    assert started.startswith("mpiexec -n 8 -ppn 4 ")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("slurm.qos=high", "slurm.qos"),
        ("slurm.pbs_mpiexec='mpiexec {nodes}'", "slurm.pbs_mpiexec"),
        *((f"slurm.extra_sbatch.{option}=x", f"slurm.extra_sbatch.{option}") for option in "qAlNoerJIz"),
    ],
)
def test_what_pbs_has_no_place_for_is_refused(executor: Callable[..., PbsExecutor], override: str, key: str) -> None:
    with refused(ConfigError, key):
        executor(override).text(SHAPE, 1)


def test_cores_are_those_of_all_devices_of_a_node_however_many_processes_start_them(
    executor: Callable[..., PbsExecutor],
) -> None:
    of_torchrun = JobShape(num_nodes=2, tasks_per_node=1, devices_per_task=4, uses_gpus=True)
    command = executor("slurm.cpus_per_task=8").text(of_torchrun, 1)
    assert "select=2:mpiprocs=1:ncpus=32:ngpus=4," in command
    assert "mpiexec -n 2 -ppn 1 " in command


def test_a_process_alone_is_started_without_mpiexec_and_warned_before_its_walltime(
    executor: Callable[..., PbsExecutor],
) -> None:
    alone = replace(executor("slurm.time_limit_minutes=60"), uses_mpiexec=False)
    script = alone.text(JobShape(num_nodes=1, tasks_per_node=1, uses_gpus=False), 1)
    assert "RANK=0 timeout --foreground --preserve-status --signal=USR2 3420 " in script
    assert "mpiexec" not in script


def test_jobs_of_jobs_are_known_where_the_first_was_submitted(
    submitted: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = submitted.model_copy(update={"hostname": "login1"})
    assert standings([login])[0].elsewhere
    monkeypatch.setenv("TRISWEEP_PBS_HOST", "login1")
    assert standings([login])[0].is_unknown


def test_every_trial_is_a_job_of_its_own(slurm_of: SlurmOf) -> None:
    assert max_array_size(slurm_of("slurm.scheduler=pbs", "slurm.max_array_size=50")) == 1


@pytest.fixture
def submitted(executor: Callable[..., PbsExecutor], tmp_path: Path, tools: Tools) -> Submission:
    tools(qsub="echo 7.head", qstat="exit 153", qdel="true")
    executor().submit(RUN_IN_SLURM, [FolderWork(TrialFolder(tmp_path / "trial"), 1)], SHAPE)
    submission = read_submission(TrialFolder(tmp_path / "trial"))
    assert submission is not None
    return submission


def test_a_refused_job_leaves_no_submission(executor: Callable[..., PbsExecutor], tmp_path: Path, tools: Tools) -> None:
    tools(qsub="echo 'qsub: Unknown queue' >&2; exit 170")
    with refused(UsageError):
        executor().submit(RUN_IN_SLURM, [FolderWork(TrialFolder(tmp_path / "trial"), 1)], SHAPE)
    assert read_submission(TrialFolder(tmp_path / "trial")) is None
    assert list(executor().logs.glob("*")) == []


def test_a_running_job_has_its_nodes_and_one_of_another_name_is_not_ours(submitted: Submission, tools: Tools) -> None:
    tools(qstat=f"cat <<'END'\n{RUNNING.format(name=submitted.job_name)}END")
    (job,) = standings([submitted])
    assert job.state is not None
    assert (job.submission.job_id, job.state.name, job.state.nodes) == ("7.head", "RUNNING", "node1,node2")
    tools(qstat=f"cat <<'END'\n{RUNNING.format(name='somebody')}END")
    assert standings([submitted])[0].is_unknown


def test_a_job_that_somebody_calls_otherwise_is_known_by_its_output(submitted: Submission, tools: Tools) -> None:
    output = f"    Output_Path = login:/logs/{submitted.job_name}.out\n"
    tools(qstat=f"cat <<'END'\n{RUNNING.format(name='mine')}{output}END")
    assert standings([submitted])[0].is_live


def test_a_value_that_qstat_breaks_is_read_whole(submitted: Submission, tools: Tools) -> None:
    name = submitted.job_name or ""
    shown = RUNNING.format(name=f"{name[:9]}\n\t{name[9:]}").replace("node2", "no\n\tde2")
    tools(qstat=f"cat <<'END'\n{shown}END")
    (job,) = standings([submitted])
    assert job.state is not None
    assert (job.state.name, job.state.nodes) == ("RUNNING", "node1,node2")


def test_a_job_whose_submitter_died_is_known_by_its_name(submitted: Submission, tools: Tools) -> None:
    tools(qstat=f"cat <<'END'\n{RUNNING.format(name=submitted.job_name)}END")
    (job,) = standings([submitted.model_copy(update={"job_id": None})])
    assert job.submission.job_id == "7.head"


@pytest.mark.parametrize(
    ("name", "content", "state"),
    [
        ("ended", "0\n", "COMPLETED"),
        ("ended", "1\n", "FAILED"),
        ("err", "=>> PBS: job killed: walltime 1812 exceeded limit 1800\n", "TIMEOUT"),
        ("err", "=>> PBS: job killed: mem 90kb exceeded limit 80kb\n", "OUT_OF_MEMORY"),
        ("deleted", "", "CANCELLED"),
    ],
)
def test_the_end_of_a_job_is_read_beside_its_output(submitted: Submission, name: str, content: str, state: str) -> None:
    assert standings([submitted])[0].state is None, "nothing tells yet"
    (Path(submitted.output).parent / f"{submitted.job_name}.{name}").write_text(content)
    (job,) = standings([submitted])
    assert job.state is not None
    assert job.state.name == state


def test_a_server_that_does_not_answer_ends_nothing(submitted: Submission, tools: Tools) -> None:
    tools(qstat="echo 'cannot connect to server' >&2; exit 111")
    with pytest.raises(SlurmSilent):
        standings([submitted])


def test_a_live_job_is_deleted_and_then_counts_as_cancelled(
    submitted: Submission, tools: Tools, tmp_path: Path
) -> None:
    tools(qstat=f"cat <<'END'\n{RUNNING.format(name=submitted.job_name)}END", qdel=f"echo $* > {tmp_path}/deleted")
    assert cancel_jobs([submitted]) == ["7.head"]
    assert (tmp_path / "deleted").read_text().split() == ["7.head"]
    tools(qstat="exit 35")
    (job,) = standings([submitted])
    assert job.state is not None
    assert job.state.name == "CANCELLED"


def test_a_rank_takes_its_seat_from_whichever_mpiexec_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["task", str(tmp_path / "job.pkl")])
    monkeypatch.setattr(os, "dup2", lambda *descriptors: None)
    job = {"TRISWEEP_PBS_JOB": "job", "WORLD_SIZE": "8", "PBS_JOBID": "7.head"}
    seat = job | {"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1"}
    take_seat(seat)
    assert (seat["RANK"], seat["LOCAL_RANK"], seat["SLURM_PROCID"]) == ("5", "1", "5")
    assert (tmp_path / "job_5_log.err").exists()
    with refused(UsageError):
        take_seat(dict(job))


@pytest.mark.parametrize(("start", "task", "first_rank", "local_rank"), [("srun", 3, 3, 1), ("torchrun", 1, 2, 0)])
def test_another_programs_task_finds_its_node_where_mpiexec_names_none(
    start: str, task: int, first_rank: int, local_rank: int
) -> None:
    on_two_nodes = ("cluster.devices_per_node=2", "cluster.num_nodes=2", "parallel.world_size=4")
    experiment = load(["trainer=command", "trainer.command=[a]", f"trainer.start={start}", *on_two_nodes]).experiment()
    own = {"SLURM_PROCID": str(task), "RANK": str(task), "LOCAL_RANK": str(local_rank), "TRISWEEP_PBS_JOB": "job"}
    of_all = {"MASTER_ADDR": "node1", "MASTER_PORT": "15007"}
    seat = seat_in_slurm(experiment, own | of_all)
    assert (seat.node_rank, seat.first_rank, seat.local_rank) == (1, first_rank, local_rank)
    assert (seat.master_addr, seat.master_port) == ("node1", 15007)
    assert without_seat(own | of_all) == of_all
