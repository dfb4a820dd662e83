"""The workbench of the checks: this node as a configuration, a folder, and jobs in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import psutil

from benchmarks.gpu_check.check import CheckLeftOut
from benchmarks.gpu_check.job import SHARING
from benchmarks.gpu_check.scale import FAMILIES, TRAINING, CheckScale
from conf.compose.load import settings_of
from conf.compose.tree import Tree, part_at, with_values
from conf.plan.experiment import Experiment
from conf.types.schema import Dtype, Value
from rates.record import RatesFolder
from train_core.job.failures import without_numbers
from train_core.process.git_sha import ROOT
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Measurement, Outcome, StepMetrics
from train_core.trial.timeline import StageTimeline

POLL_SECONDS = 0.02
MOST_LOG_LINES = 40
GRACE_SECONDS = 30.0
"""The supervisor keeps the time limit itself. One that is silent for so much longer is ended from here."""


class JobRun(NamedTuple):
    """The end of a job, its steps, and where each pipeline stage's part of one of them went."""

    measurement: Measurement
    steps: list[StepMetrics]
    recorded: Sequence[StageTimeline] = ()

    @property
    def completed(self) -> bool:
        return self.measurement.outcome is Outcome.COMPLETED

    @property
    def why(self) -> str:
        blamed = self.measurement.failing_rank
        whose = "" if blamed is None else f" (rank {blamed})"
        return f"{self.measurement.outcome}{whose}: {self.measurement.cause}"


@dataclass(eq=False)
class CheckJob:
    """A job in processes of its own.

    Attributes:
        deadline: in monotonic seconds.
    """

    log: Path
    process: subprocess.Popen[bytes]
    deadline: float

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for the condition; False where the job ended before, or its time did."""
        while not condition():
            if self.has_ended() or time.monotonic() > self.deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def pid_writing(self, log: Path) -> int | None:
        """The process of the job whose output goes into a file: a rank has its own log."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(OSError):
                    if str(Path(f"/proc/{child.pid}/fd/1").readlink()) == str(log.resolve()):
                        return child.pid
        return None

    def kill(self) -> None:
        """End every process at once, as the loss of the node would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self) -> str:
        """Wait for the end; how it came about, and the last words of the job."""
        try:
            self.process.wait(max(0.0, self.deadline - time.monotonic()) + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        said = self.log.read_text(errors="replace").splitlines()[-MOST_LOG_LINES:]
        return "\n".join([f"the job ended with exit code {self.process.returncode} and measured nothing", *said])


@dataclass(eq=False)
class TrialJob(CheckJob):
    """A trial that runs in processes of its own."""

    trial: TrialFolder

    def finish(self) -> JobRun:
        started, said = time.time(), self.wait()
        measurement = self.trial.read_measurement()
        if measurement is None:
            cause, _, words = said.partition("\n")
            measurement = without_numbers("", Outcome.FAILED, cause, started, words)
        return JobRun(measurement, self.trial.read_metrics(), self.trial.read_timeline())


SomeJob = TypeVar("SomeJob", bound=CheckJob)


@dataclass
class CheckWorkbench:
    """This node, and what runs on it.

    Attributes:
        num_devices: GPUs, or ranks on a CPU.
        num_ranks: the ranks that run at once; more than there are GPUs share them.
        tree: the configuration, whose cluster is this node.
        cpu_tree: the same with the cores as cluster.
        narrow: the 16-bit precision that the device has.
        folder: trials are made in it.
        stopped: nothing more is started once it is set.
    """

    kind: Literal["gpu", "cpu"]
    num_devices: int
    num_ranks: int
    tree: Tree
    cpu_tree: Tree
    narrow: Dtype
    scale: CheckScale
    folder: Path
    stopped: threading.Event = field(default_factory=threading.Event)
    jobs: set[CheckJob] = field(default_factory=set)

    @property
    def shares_devices(self) -> bool:
        return self.num_ranks > self.num_devices

    @property
    def has_fp8(self) -> bool:
        return "fp8" in part_at(self.tree, "cluster.device.peak_flops_per_second")

    def trial(self, name: str) -> TrialFolder:
        return TrialFolder(self.folder / "trials" / name)

    def small(self, family: str, dtype: Dtype, values: Mapping[str, Value], *, on_cpu: bool = False) -> Experiment:
        """The small model, trained for a few steps on text."""
        groups: dict[str, Value] = {"model.num_query_groups": self.scale.query_groups} if family == "Llama" else {}
        small: dict[str, Value] = {
            **TRAINING,
            **self.scale.model,
            **FAMILIES[family],
            **groups,
            "precision.dtype": dtype,
            "data.max_bytes": 200_000,
            "watch.hang_seconds": self.scale.hang_seconds,
        }
        return self.experiment({**small, **values}, on_cpu=on_cpu)

    def experiment(self, values: Mapping[str, Value], *, on_cpu: bool = False) -> Experiment:
        return settings_of(with_values(self.cpu_tree if on_cpu else self.tree, values)).experiment()

    def start(
        self, name: str, experiment: Experiment, devices: Sequence[int], seconds: float, memory: int | None = None
    ) -> TrialJob:
        """Start a trial in the folder called `name`, whose last job has ended.

        Args:
            devices: the place of each rank; ignored where the experiment computes on the CPU.
            memory: bytes that a process may have on the CPU beside what it begins with.
        """
        trial = self.trial(name)
        trial.write_trial({"experiment": experiment.model_dump(mode="json")})
        gpus = devices[: experiment.parallel.world_size] if experiment.cluster.device.kind == "gpu" else ()
        options = ["--seconds", str(seconds), *(("--memory", str(memory)) if memory is not None else ())]
        numbers = [place % self.num_devices for place in gpus]
        options += ["--devices", *map(str, numbers)] if numbers else []
        log = trial.path.with_suffix(".log")
        sharing = SHARING if len(set(numbers)) < len(numbers) else {}
        process = self._start_process("job", [str(trial.path.absolute()), *options], log, sharing)
        return self._watch(TrialJob(log, process, time.monotonic() + seconds, trial))

    def measure_rates(self, folder: RatesFolder, seconds: float) -> str:
        """Run a calibration of this node to its end; its last words, if it measured nothing."""
        log = folder.path.with_suffix(".log")
        process = self._start_process("rates_job", [str(folder.path.absolute())], log, {})
        job = self._watch(CheckJob(log, process, time.monotonic() + seconds))
        said = job.wait()
        self.jobs.discard(job)
        return said

    def _start_process(
        self, module: str, arguments: Sequence[str], log: Path, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """A process of this room, in a session of its own: Ctrl-C reaches only the check, which ends its jobs."""
        if self.stopped.is_set():
            raise CheckLeftOut("interrupted")
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.gpu_check.{module}", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, **variables},
            )

    def _watch(self, job: SomeJob) -> SomeJob:
        self.jobs.add(job)
        if self.stopped.is_set():  # since it was last looked at
            job.kill()
        return job

    def run(
        self,
        name: str,
        experiment: Experiment,
        devices: Sequence[int],
        seconds: float | None = None,
        memory: int | None = None,
    ) -> JobRun:
        return self.wait_for(self.start(name, experiment, devices, seconds or self.scale.trial_seconds, memory))

    def wait_for(self, job: TrialJob) -> JobRun:
        ran = job.finish()
        self.jobs.discard(job)
        return ran

    def end_all(self) -> None:
        for job in list(self.jobs):
            job.kill()
