"""The job that holds a sweep's allocation, from the inside: it starts trials as steps until none is left to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.overrides import Overrides
from conf.types.sites import SlurmSpec
from conf.units import count_of
from launcher.allocation.nodes import SlurmAllocation, own_allocation
from launcher.allocation.step import StepExecutor
from launcher.control.advance import Conductor
from launcher.control.loop import go_on
from launcher.control.rules import PAUSED, Rules, SweepStep
from launcher.control.workplace import ProgressDisplay
from launcher.executor import RUN_IN_SLURM
from launcher.folder_lock import holder, lock_folder, wait_until_free
from launcher.slurm.executor import SlurmJob
from launcher.slurm.own_jobs import requeue
from launcher.slurm.query import SlurmSilent
from launcher.workplaces.in_allocation import ORDINARY_TIMES, AllocationRoom, AllocationTimes
from launcher.workplaces.queue import logs_folder
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from train_core.measurement import Outcome

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
        overrides: with which the sweep was begun; None carries out the listed points, whatever they cost.
        job: what each task of a step calls with the trial folder.
    """

    slurm: SlurmSpec
    devices_per_node: int
    overrides: tuple[str, ...] | None = None
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
        with lock_folder(sweep.folder):
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
        from launcher.control.composed_rules import rules_for
        from launcher.sweep import slurm_rules
        from launcher.where import compose_for_slurm

        if self.overrides is None:
            return slurm_rules(self.slurm)
        return rules_for(compose_for_slurm(Overrides.parse(self.overrides)), sweep.record, on_slurm=True)


def room_for(
    sweep: Sweep,
    slurm: SlurmSpec,
    devices_per_node: int,
    snapshot: Callable[[], Path],
    job: SlurmJob = RUN_IN_SLURM,
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
        logs=logs_folder(sweep.folder),
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
                print(f"{now} {each.name} {each.outcome} {each.cause}".rstrip(), flush=True)
            self._seen[each.name] = each.outcome
