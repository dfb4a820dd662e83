"""The job that holds a sweep's allocation: submitted once, it starts the trials inside itself until none is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conf.control import LauncherSpec
from conf.sites import SlurmSpec
from launcher.allocation_workplace import CLOSING_SECONDS, AllocationRoom
from launcher.by_name import RUN_IN_SLURM
from launcher.executor import Work
from launcher.folder_lock import locked
from launcher.job import requeue
from launcher.own_jobs import Standing, standings
from launcher.retries import RetryRule
from launcher.slurm import logs_folder
from launcher.slurm_executor import SlurmExecutor, SlurmJob
from launcher.snapshot import snapshot_code
from sweeps.submission import JobShape, read_submission
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from train_core.trial_folder import JobFolder

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class AllocationJob:
    """What the job's batch script runs.

    Attributes:
        job: what each task of a step calls with the trial folder.
        closing_seconds: so long before the allocation's time limit, its trials are ended.
    """

    slurm: SlurmSpec
    job: SlurmJob = RUN_IN_SLURM
    closing_seconds: float = CLOSING_SECONDS

    def __call__(self, folder: str) -> None:
        """Carry the sweep out inside this allocation; if work is left when its time is over, have Slurm run it again.

        Args:
            folder: the sweep's.
        """
        sweep = Sweep.stored_in(SweepFolder(Path(folder).parent))
        code = Path(__file__).parents[1]
        room = workplace(sweep, self.slurm, self.job, lambda: code)
        room.closing_seconds = self.closing_seconds
        with locked(sweep.folder):
            done = carry_out(sweep, room, self.slurm.max_resubmits)
        if done:
            return
        if room.num_ended:
            requeue()
        else:
            print("No trial ended in this allocation, so it is not run again. Raise launcher.time_limit_minutes.")


def workplace(sweep: Sweep, slurm: SlurmSpec, job: SlurmJob, snapshot: Callable[[], Path]) -> AllocationRoom:
    return AllocationRoom(
        slurm,
        devices_per_node(sweep.runnable),
        f"trisweep-{sweep.record.name}",
        snapshot,
        logs_folder(sweep.folder),
        job,
    )


def carry_out(sweep: Sweep, room: AllocationRoom, max_resubmits: int) -> bool:
    rule = RetryRule(max_resubmits, retry_cancelled=False)
    while True:
        readings = [each for each in room.standing(sweep) if each.trial.selected and each.experiment]
        waiting = [each for each in readings if not each.awaits_slurm and rule.allows(each)]
        flying = [each for each in readings if each.awaits_slurm]
        if not waiting and not flying:
            return True
        if room.is_closing and not room.running:
            return False
        room.start(sweep, waiting)
        until = time.monotonic() + POLL_SECONDS
        while time.monotonic() < until and not room.has_news():
            time.sleep(0.1)


def devices_per_node(trials: list[Trial]) -> int:
    return max(trial.experiment.cluster.devices_per_node for trial in trials if trial.experiment)


def submit_allocation(
    sweep: Sweep,
    slurm: SlurmSpec,
    launcher: LauncherSpec,
    job: SlurmJob = RUN_IN_SLURM,
    closing_seconds: float = CLOSING_SECONDS,
) -> str:
    """Submit the job and return its id."""
    trials = sweep.runnable
    needed = max(trial.experiment.num_nodes for trial in trials if trial.experiment)
    shape = JobShape(
        num_nodes=launcher.num_nodes or needed,
        tasks_per_node=devices_per_node(trials),
        uses_gpus=any(trial.experiment.cluster.device.kind == "gpu" for trial in trials if trial.experiment),
    )
    code = snapshot_code(sweep.folder.code.absolute())
    held = slurm.model_copy(
        update={"time_limit_minutes": launcher.time_limit_minutes, "extra_sbatch": _whole_nodes(slurm)}
    )
    name = f"trisweep-{sweep.record.name}-allocation"
    executor = SlurmExecutor(held, name, code, logs_folder(sweep.folder), requeues=True, uses_srun=False)
    with locked(sweep.folder):
        sweep.folder.write_record(sweep.record)
        folder = allocation_folder(sweep.folder)
        folder.path.mkdir(parents=True, exist_ok=True)
        return executor.submit(AllocationJob(slurm, job, closing_seconds), [Work(folder, 1, 0)], shape)


def _whole_nodes(slurm: SlurmSpec) -> dict[str, str | int | bool]:
    """Nothing of the nodes is anybody else's, and a node that fails does not take the others along."""
    own = {option.lstrip("-"): value for option, value in slurm.extra_sbatch.items() if option.lstrip("-") != "mem"}
    whole: dict[str, str | int | bool] = {"exclusive": True, "mem": "0", "no-kill": True, "signal": "USR2@0"}
    return whole | own


def allocation_folder(folder: SweepFolder) -> JobFolder:
    return JobFolder(folder.path / "allocation")


def live_allocation(folder: SweepFolder) -> Standing | None:
    """The sweep's allocation, if Slurm has it; None where there is none.

    Raises:
        SlurmSilent: Slurm does not answer.
    """
    submission = read_submission(allocation_folder(folder))
    standing = standings([submission])[0] if submission else None
    return standing if standing and standing.is_live else None
