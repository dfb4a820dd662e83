"""One trial as a step of an allocation: the `srun` that starts it on its own nodes, cores and devices, and its end."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from conf.errors import UsageError
from conf.types.sites import SlurmSpec
from launcher.allocation.nodes import SlurmAllocation, running_steps
from launcher.allocation.packing import Expectation, StepPlacement
from launcher.external_commands import REQUEST_OF_JOB, ask
from launcher.job_payload import FolderWork
from launcher.slurm.cluster import this_cluster
from launcher.slurm.executor import TOKEN_BYTES, SlurmJob, words_of_task, write_work
from launcher.slurm.query import SlurmSilent
from launcher.slurm.sbatch import gpu_request, python_command, srun_args
from launcher.slurm.shell import without_srun_requests
from launcher.slurm.verdict import DEFAULT_SETTLING_SECONDS, SETTLING_SECONDS
from sweeps.folder.submission import JobShape, Submission, SurroundingJob, new_submission, write_submission
from sweeps.trial import Trial
from train_core.process.git_sha import variables_of

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""AMD's runtime listens to it too. ROCR_VISIBLE_DEVICES beside it would number what is left anew."""

END_SECONDS = 40.0
"""Slurm kills a step that does not end by itself after its KillWait, which is 30 s by default."""


@dataclass(frozen=True)
class StepExecutor:
    """Starts steps of one allocation, which nobody else starts steps in.

    Attributes:
        allocation: as it stood when this process began to work in it.
        snapshot: makes the snapshot of the code that they run, once it is needed.
        runs_setup: the lines of `slurm.setup` have not been run in this shell.
        patience_seconds: after which srun gives up a step that Slurm does not make.
    """

    allocation: SlurmAllocation
    slurm: SlurmSpec
    devices_per_node: int
    name: str
    snapshot: Callable[[], Path]
    logs: Path
    runs_setup: bool
    patience_seconds: int

    @cached_property
    def code(self) -> Path:
        return self.snapshot()

    @cached_property
    def slots(self) -> Mapping[str, int]:
        """How many trials of one device each node has room for; each gets that share of its cores and memory.

        These are the devices that are handed out, as far as the cores are enough for them.
        """
        most, cores = self.devices_per_node, self.slurm.cpus_per_task or 1
        return {node.name: min(most, node.gpus or most, max(1, node.cores // cores)) for node in self.allocation.nodes}

    def start(
        self, function: SlurmJob, work: FolderWork, shape: JobShape, placement: StepPlacement
    ) -> tuple[Submission, subprocess.Popen[bytes]]:
        """Start a step in which every task calls the function with the folder; returns its submission and its srun.

        Raises:
            UsageError: there is no srun here, or others may write where the step finds what it is to do.
        """
        if not shutil.which("srun"):
            raise UsageError("There is no srun on the PATH", "Start the controller where Slurm's commands are.")
        submission = self._submission(work, shape)
        assert submission.job_name is not None
        task = self.logs / f"{submission.job_name}.pkl"
        write_work(task, function, [work])
        # Before the step starts, whose ranks look there whether they are the ones that are meant.
        write_submission(work.folder, submission)
        command = self.command(submission, placement, task)
        # srun's own words about the step's end belong beside those of the tasks, as in a job of its own.
        with submission.error_of(0).open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment(shape, placement),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the controller alone, which ends the steps in order
            )
        return submission, process

    def command(self, submission: Submission, placement: StepPlacement, task: Path) -> list[str]:
        """The step's srun. It shares nothing with the steps beside it: without --exact it would take whole nodes."""
        shape, nodes = submission.shape, [node for node in self.allocation.nodes if node.name in placement.nodes]
        shares = [shape.devices_per_node / self.slots[node.name] for node in nodes]
        # The share of a device on the poorest node, for a step asks the same of each of its nodes.
        cores = min(node.cores // self.slots[node.name] for node in nodes)
        # Always named: a step that names none, or 0, takes all of a node's memory, and those beside it would wait.
        memory = min(int(node.memory_mb * share) for node, share in zip(nodes, shares, strict=True))
        stated = str(self.slurm.extra_sbatch.get("mem", 0))
        step = [
            *("--exact", f"--nodes={shape.num_nodes}", f"--nodelist={','.join(placement.nodes)}"),
            f"--immediate={self.patience_seconds}",  # else srun asks for ever where the allocation has lost a node
            f"--ntasks={shape.num_nodes * shape.tasks_per_node}",
            f"--ntasks-per-node={shape.tasks_per_node}",
            f"--cpus-per-task={(self.slurm.cpus_per_task or max(1, cores)) * shape.devices_per_task}",
            f"--mem={f'{memory}M' if stated == '0' else stated}",
            f"--time={self.slurm.time_limit_minutes}",
            *self._gpu_request(shape),
            *("--unbuffered", "--open-mode=append", f"--job-name={submission.job_name}"),
            *(f"--output={submission.output}", f"--error={submission.error}"),
        ]
        program = [*shlex.split(python_command(self.slurm)), "-u", *words_of_task(task), "0"]
        srun = ["srun", *srun_args(self.slurm, shape), *step, *program]
        if not (self.runs_setup and self.slurm.setup):
            return srun
        # exec leaves srun in the place of the shell, so that the signal that ends the step reaches it.
        return ["bash", "-c", "\n".join([*self.slurm.setup, 'exec "$@"']), "bash", *srun]

    def _gpu_request(self, shape: JobShape) -> list[str]:
        if not self._slurm_hands_out_gpus:
            return []
        if not shape.uses_gpus:
            # Else a step takes the allocation's GPUs along, and those beside it would wait for them.
            return ["--gres=none"]
        return [f"--{option.replace('_', '-')}={value}" for option, value in gpu_request(self.slurm, shape).items()]

    @property
    def _slurm_hands_out_gpus(self) -> bool:
        return any(node.gpus for node in self.allocation.nodes)

    def environment(self, shape: JobShape, placement: StepPlacement) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(REQUEST_OF_JOB)}
        kept = without_srun_requests(kept)
        own = {**variables_of(self.code), **self.slurm.environment}
        if shape.uses_gpus and not self._slurm_hands_out_gpus:
            # Whole nodes come with all of their devices, so that nobody else keeps the trials on a node apart.
            own[VISIBLE_DEVICES] = ",".join(map(str, placement.devices))
        return kept | own

    def _submission(self, work: FolderWork, shape: JobShape) -> Submission:
        job_name = f"{self.name}-{secrets.token_hex(TOKEN_BYTES)}"
        inside = SurroundingJob(job_id=self.allocation.job_id, job_name=self.allocation.job_name)
        named = partial(new_submission, executor="slurm", job_name=job_name, cluster=this_cluster().name)
        return named(work.attempt, shape, self.logs, job_name, inside=inside)


@dataclass
class RunningStep:
    """A step of an allocation that was started and has not been reported yet, its times by `time.monotonic`.

    Attributes:
        process: its srun; None of a step that an earlier controller started.
    """

    trial: Trial
    submission: Submission
    placement: StepPlacement
    process: subprocess.Popen[bytes] | None
    began: float
    ended: float | None = None

    def remaining_seconds(self, expected: Expectation) -> float:
        return max(0.0, expected.seconds(self.trial) - (time.monotonic() - self.began))

    @property
    def exit_code(self) -> int:
        return self.process.returncode if self.process else 1

    @property
    def has_ended(self) -> bool:
        """True if its srun has ended; of a step without one, nobody knows that without asking Slurm."""
        return self.process is not None and self.process.poll() is not None

    @property
    def is_settled(self) -> bool:
        """True if a result that the step left would have appeared on a network file system by now."""
        assert self.ended is not None
        state = "COMPLETED" if self.exit_code == 0 else "FAILED"
        return time.monotonic() - self.ended >= SETTLING_SECONDS.get(state, DEFAULT_SETTLING_SECONDS)


def ended_steps(steps: Mapping[str, RunningStep], job_id: str) -> list[str]:
    """Return the names of steps that have ended. Slurm is asked only if some have no srun of this process."""
    ended = [name for name, step in steps.items() if step.has_ended]
    adopted = {name: step for name, step in steps.items() if step.process is None}
    with suppress(SlurmSilent):
        alive = running_steps(job_id) if adopted else {}
        ended += [name for name, step in adopted.items() if step.submission.job_name not in alive]
    return ended


def end_all(steps: Sequence[RunningStep]) -> None:
    """End the steps, and wait until they have ended."""
    for step in steps:
        if step.process is not None:
            step.process.terminate()  # srun kills the step's tasks
        elif step.submission.job_id:
            ask("scancel", step.submission.job_id)
    # One limit for all of them, since they end at the same time.
    until = time.monotonic() + END_SECONDS
    for step in steps:
        with suppress(subprocess.TimeoutExpired):
            if step.process is not None:
                step.process.wait(max(0.0, until - time.monotonic()))
