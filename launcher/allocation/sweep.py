"""A sweep in one allocation: submitted as a job that carries it out, or carried out in the one of this shell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.compose.settings import LauncherSpec
from conf.errors import ConfigError, UsageError
from conf.overrides import Overrides
from conf.types.cluster_spec import ClusterSpec
from conf.types.sites import SlurmSpec
from conf.units import MINUTES_PER_HOUR, SECONDS_PER_MINUTE, count_of
from conf.visible import visible
from launcher.allocation.nodes import SlurmAllocation, own_allocation
from launcher.allocation.step import StepExecutor
from launcher.allocation.workplace import ORDINARY_TIMES, AllocationRoom, AllocationTimes
from launcher.control.composed_rules import rules_for
from launcher.control.conductor import Conductor
from launcher.control.loop import go_on
from launcher.control.orders import SweepCommand
from launcher.control.rules import PAUSED, Rules, SweepStep
from launcher.control.workplace import ProgressDisplay
from launcher.folder_lock import holder, lock_folder, wait_until_free
from launcher.job_payload import RUN_IN_SLURM, FolderWork
from launcher.provenance import snapshot_code
from launcher.refused import unchanged_if_refused
from launcher.slurm.executor import SlurmExecutor, SlurmJob, require_sbatch
from launcher.slurm.job_status import carrying_job, requeue
from launcher.slurm.query import SlurmSilent
from launcher.slurm.workplace import JobRequest, SeenFromOutside
from launcher.sweep import begin_sweep, order_of_live_job, slurm_rules
from launcher.where import compose_for_slurm
from sweeps.folder.submission import JobShape
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from train_core.trial.measurement import Outcome

INTERRUPTED = "the command in whose allocation it ran was interrupted"


def allocation_request(sweep: Sweep, slurm: SlurmSpec, launcher: LauncherSpec, cluster: ClusterSpec) -> JobRequest:
    """Return what `submit_allocation` would submit. Writes nothing and needs no Slurm.

    Raises:
        ConfigError: a trial would not fit into the allocation.
    """
    shape = _shape(sweep, launcher, cluster)
    hours = shape.num_nodes * shape.tasks_per_node * launcher.time_limit_minutes / MINUTES_PER_HOUR
    executor = _executor(sweep, slurm, launcher)
    return JobRequest(shape, executor.text(shape, 1), hours)


def submit_allocation(
    command: SweepCommand,
    slurm: SlurmSpec,
    launcher: LauncherSpec,
    cluster: ClusterSpec,
    *,
    job: SlurmJob = RUN_IN_SLURM,
    times: AllocationTimes = ORDINARY_TIMES,
) -> tuple[str | None, SweepStep | None]:
    """Submit the job in which the sweep is carried out, unless one lives or nothing is left to run, and return.

    Returns:
        The job's id, None where nothing was left to run; and how the sweep stood, None where a job lives from before,
        which knows better.

    Raises:
        UsageError: there is no sbatch, Slurm refuses, another process works on the folder, a controller goes on with
            the sweep, or an allocation carries another sweep out than the command's.
        ConfigError: the folder cannot be written, or a trial would not fit into the allocation.
    """
    require_sbatch(slurm)
    sweep = command.sweep
    if (live := carrying_job(sweep.folder, sweep.folder.allocation)) is not None:
        order_of_live_job(command, live)
        return live, None
    shape = _shape(sweep, launcher, cluster)
    with lock_folder(sweep.folder), unchanged_if_refused(sweep.folder):
        conductor = begin_sweep(command, SeenFromOutside(slurm), on_slurm=True)
        step = conductor.advance()
        if step.finished:
            return None, step
        folder = sweep.folder.allocation
        folder.path.mkdir(parents=True, exist_ok=True)
        executor = _executor(sweep, slurm, launcher, snapshot_code(sweep.folder.code.absolute()).name)
        function = AllocationJob(slurm, shape.tasks_per_node, tuple(command.orders.overrides), job, times)
        job_id = executor.submit(function, [FolderWork(folder, 1)], shape)
    return job_id, step


def run_inside(
    command: SweepCommand,
    slurm: SlurmSpec,
    cluster: ClusterSpec,
    progress: ProgressDisplay,
    *,
    job: SlurmJob = RUN_IN_SLURM,
) -> SweepStep:
    """Carry the sweep out in the allocation that this process is in, until it has ended or the allocation does.

    Raises:
        KeyboardInterrupt: a signal came; the steps have been ended, and the same call continues.
    """
    sweep = command.sweep
    with lock_folder(sweep.folder), unchanged_if_refused(sweep.folder):
        code = sweep.folder.code.absolute()
        try:
            room = room_for(sweep, slurm, cluster.devices_per_node, lambda: snapshot_code(code), job, runs_setup=True)
        except SlurmSilent:
            problem = "Slurm does not answer, and so nobody knows which nodes this allocation has"
            raise UsageError(problem, "Give the same command again when squeue answers.") from None
        # In the foreground of a command everything that people are to read goes through its display.
        room.say = progress.say
        conductor = begin_sweep(command, room, on_slurm=True)
        with progress:
            try:
                return go_on(conductor, progress, POLL_SECONDS, is_over=SweepStep.leaves_nothing_to_do)
            except KeyboardInterrupt:
                room.interrupt_all(conductor.sweep, INTERRUPTED)
                progress.show(room.read_trials(conductor.sweep))
                raise


def require_time(slurm: SlurmSpec, launcher: LauncherSpec) -> None:
    """Raises ConfigError where a trial could not run to its own time limit, however early it started."""
    least = slurm.time_limit_minutes + ORDINARY_TIMES.closing_seconds / SECONDS_PER_MINUTE
    if launcher.time_limit_minutes < least:
        problem = f"is too short for a trial, which has slurm.time_limit_minutes = {slurm.time_limit_minutes}"
        remedy = f"Give the allocation at least {least:g} minutes, or trials less."
        raise ConfigError("launcher.time_limit_minutes", launcher.time_limit_minutes, problem, remedy)


def _shape(sweep: Sweep, launcher: LauncherSpec, cluster: ClusterSpec) -> JobShape:
    """Whole nodes: as many as were asked for, else as the largest trial needs."""
    experiments = [trial.experiment for trial in sweep.runnable if trial.experiment]
    if any(experiment.mixed for experiment in experiments):
        problem = "has nodes of one type, and a trial of the sweep runs on several"
        raise ConfigError("launcher.kind", launcher.kind, problem, "Use launcher=jobs, or mixed=null.")
    largest = max(experiments, key=lambda experiment: experiment.num_nodes, default=None)
    if largest is None and launcher.num_nodes is None:
        problem = "leaves open how many nodes the allocation has, as the sweep lists no point that can run"
        raise ConfigError("launcher.num_nodes", None, problem, "Give a number of nodes.")
    if largest is not None and launcher.num_nodes is not None and launcher.num_nodes < largest.num_nodes:
        problem = f"is too small for {largest.label}, which needs {count_of(largest.num_nodes, 'node')}"
        raise ConfigError("launcher.num_nodes", launcher.num_nodes, problem, "Give more nodes, or null.")
    if launcher.num_nodes is not None and launcher.num_nodes > cluster.num_nodes:
        problem = f"is more than cluster.num_nodes = {cluster.num_nodes}"
        raise ConfigError("launcher.num_nodes", launcher.num_nodes, problem, f"Use {cluster.num_nodes} or less.")
    return JobShape(
        num_nodes=launcher.num_nodes or (largest.num_nodes if largest else 1),
        tasks_per_node=cluster.devices_per_node,
        uses_gpus=cluster.device.kind == "gpu",
    )


def _executor(sweep: Sweep, slurm: SlurmSpec, launcher: LauncherSpec, code: str = "SNAPSHOT") -> SlurmExecutor:
    """Make the allocation's executor: its nodes are shared with nobody, and one that fails does not end the others."""
    # mem=0 asks for all of a node's memory, which the steps then share out; sbatch refuses it beside memory by the CPU
    # or GPU. The site's own options come between, so that they replace our signal but never this.
    own = {option: value for option, value in slurm.extra_sbatch.items() if not option.startswith("mem-per-")}
    extra: dict[str, str | int | bool] = {"exclusive": True, "no-kill": True, "signal": "USR2@0", **own, "mem": "0"}
    outside = slurm.outside_container()
    settings = outside.model_copy(update={"time_limit_minutes": launcher.time_limit_minutes, "extra_sbatch": extra})
    name = f"trisweep-{sweep.record.name}-allocation"
    snapshot = sweep.folder.code.absolute() / code
    return SlurmExecutor(settings, name, snapshot, sweep.folder.submitit.absolute(), requeues=True, uses_srun=False)


POLL_SECONDS = 5.0
"""Between two looks at steps and heartbeats. The end of a step is seen at once."""

PATIENCE_SECONDS = 120.0
"""For so long Slurm may keep silent when the controller starts."""

ENDED = "the allocation in which it ran was ended"
GIVEN_UP = "Slurm makes no steps in this allocation any more ({said}); the trials go back to the queue."
NOTHING_ENDED = "No trial ended in this allocation, so it is not run again. Raise launcher.time_limit_minutes."


@dataclass(frozen=True)
class AllocationJob:
    """The function that the job's batch script calls with the folder of the allocation.

    Attributes:
        devices_per_node: of the cluster.
        overrides: with which the sweep was begun; empty carries out the listed points, whatever they cost.
        job: what each task of a step calls with the trial folder.
    """

    slurm: SlurmSpec
    devices_per_node: int
    overrides: tuple[str, ...] = ()
    job: SlurmJob = RUN_IN_SLURM
    times: AllocationTimes = ORDINARY_TIMES

    def __call__(self, folder: str) -> None:
        """Carry the sweep out in this allocation. If trials are left when its time is over, have Slurm run it again."""
        files = SweepFolder(Path(folder).parent)
        sweep = Sweep(files, files.read_record())
        code = Path(__file__).parents[1]  # the snapshot that this job runs
        try:
            room = room_for(sweep, self.slurm, self.devices_per_node, lambda: code, self.job, self.times)
        except SlurmSilent:
            print("Slurm does not answer; it runs this allocation again later.", flush=True)
            requeue()
            return
        wait_until_free(sweep.folder, self.times.lock_seconds)
        if (other := holder(sweep.folder)) is not None:
            print(f"The sweep is worked on by {other}; Slurm runs this allocation again later.")
            requeue()
            return
        with lock_folder(sweep.folder), unchanged_if_refused(sweep.folder):
            conductor = Conductor(sweep, room, self._rules(sweep))
            try:
                step = go_on(conductor, LogLines(), POLL_SECONDS, is_over=SweepStep.leaves_nothing_to_do)
            except KeyboardInterrupt as stop:
                room.interrupt_all(conductor.sweep, ENDED)
                print(f"Stopped by signal {stop.args[0]}.")
                return
        self._leave(step, room)

    def _leave(self, step: SweepStep, room: AllocationRoom) -> None:
        """Say why nothing more is done here, and have Slurm run the job again where that gets any further."""
        print(step.finished or step.held or f"left: {count_of(step.num_waiting, 'trial')}", flush=True)
        if step.finished or step.held == PAUSED:
            return
        if room.why_given_up:
            print(GIVEN_UP.format(said=room.why_given_up))
        # Where no trial gets to its end, starting anew is worth a few tries on other nodes, and no more.
        if room.num_ended or (room.why_given_up and room.allocation.restarts < self.slurm.max_resubmits):
            requeue()
        elif room.why_given_up:
            print(f"Not run again: slurm.max_resubmits = {self.slurm.max_resubmits}, and no trial has ended in it.")
        else:
            print(NOTHING_ENDED)

    def _rules(self, sweep: Sweep) -> Rules:
        if not self.overrides:
            return slurm_rules(self.slurm)
        return rules_for(compose_for_slurm(Overrides.parse(self.overrides)), sweep.record, on_slurm=True)


def room_for(
    sweep: Sweep,
    slurm: SlurmSpec,
    devices_per_node: int,
    snapshot: Callable[[], Path],
    job: SlurmJob,
    times: AllocationTimes = ORDINARY_TIMES,
    *,
    runs_setup: bool = False,
) -> AllocationRoom:
    """The allocation that this process is in, as the place where the sweep's trials run.

    Raises:
        SlurmSilent: Slurm does not answer for some minutes.
    """
    executor = StepExecutor(
        allocation=_allocation_once_slurm_answers(),
        slurm=slurm,
        devices_per_node=devices_per_node,
        name=f"trisweep-{sweep.record.name}",
        snapshot=snapshot,
        logs=sweep.folder.submitit.absolute(),
        runs_setup=runs_setup,
        patience_seconds=times.step_seconds,
    )
    return AllocationRoom(executor, job, times)


def _allocation_once_slurm_answers() -> SlurmAllocation:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return own_allocation()
        except SlurmSilent:
            if time.monotonic() > until:
                raise
            time.sleep(POLL_SECONDS)


class LogLines(ProgressDisplay):
    """A line of the job's output for each trial that starts or ends."""

    def __init__(self) -> None:
        self._seen: dict[str, Outcome | None] = {}

    def show(self, states: Sequence[TrialReading]) -> None:
        for each in states:
            if self._seen.get(each.name) is not each.outcome and each.outcome is not Outcome.PENDING:
                now = time.strftime("%Y-%m-%dT%H:%M:%S")
                print(visible(f"{now} {each.name} {each.outcome} {each.cause}".rstrip()), flush=True)
            self._seen[each.name] = each.outcome
