"""A job of one task on each of two nodes, which tells what no login node knows. It is waited for, but not for long."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conf.types.cluster_spec import ClusterSpec
from conf.types.sites import SlurmSpec
from launcher.doctor.node_report import DoctorFolder, DoctorPlan, NodeReport
from launcher.external_commands import ask
from launcher.job_payload import CHECK_NODE_IN_SLURM, FolderWork
from launcher.provenance import snapshot_code
from launcher.slurm.executor import SlurmExecutor
from launcher.slurm.job_status import cancel_jobs, standings
from launcher.slurm.query import SlurmJobState, SlurmSilent
from launcher.slurm.verdict import why_ended
from sweeps.folder.submission import JobShape, Submission, read_submission
from train_core.trial.logs import tail

QUEUE_SECONDS = 60.0
RUN_SECONDS = 180.0
"""The first import of torch on a node may take minutes; the job's own limit is a little longer."""

TIME_LIMIT_MINUTES = 5
POLL_SECONDS = 1.0
NUM_NODES = 2
"""Two nodes are the fewest whose ranks meet over the network."""

LAST_WORDS = re.compile(r"^\w*(?:Error|Exception): .*", re.MULTILINE)
"""The last line of a traceback of Python's."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class JobEnd:
    """The end of the doctor's job, with the reports of its ranks.

    Attributes:
        token: what every node was to read.
        reports: of the ranks that told something.
        trouble: why not all ranks told all; empty where they did.
        remedy: what to do about the trouble.
        seconds_in_queue: None where it has not started.
    """

    job_id: str
    token: str
    reports: tuple[NodeReport, ...]
    trouble: str = ""
    remedy: str = ""
    seconds_in_queue: float | None = None


@dataclass(frozen=True)
class TinyJob:
    """The job before it is submitted."""

    slurm: SlurmSpec
    cluster: ClusterSpec
    folder: DoctorFolder

    @property
    def shape(self) -> JobShape:
        # One task a node: what is to be seen is whether nodes reach each other, and more devices would only wait
        # longer.
        nodes = min(NUM_NODES, max(self.cluster.num_nodes, 1))
        return JobShape(num_nodes=nodes, tasks_per_node=1, uses_gpus=self.cluster.device.kind == "gpu")

    def sbatch(self) -> str:
        """The text that sbatch gets for a job like this one, with the time limit of a sweep's jobs."""
        code = self.folder.code.absolute() / "SNAPSHOT"
        return SlurmExecutor(self.slurm, "trisweep-doctor", code, self._logs).text(self.shape, 1)

    def run(self, tell: Tell) -> JobEnd:
        """Submit it, wait for it, and end it if it takes too long; raises UsageError where Slurm refuses it."""
        kind, num_ranks = self.cluster.device.kind, self.shape.num_nodes
        plan = DoctorPlan(token=secrets.token_hex(8), kind=kind, num_ranks=num_ranks)
        self.folder.prepare(plan)
        quick = self.slurm.model_copy(update={"time_limit_minutes": TIME_LIMIT_MINUTES})
        code = snapshot_code(self.folder.code.absolute())
        executor = SlurmExecutor(quick, "trisweep-doctor", code, self._logs)
        executor.submit(CHECK_NODE_IN_SLURM, [FolderWork(self.folder, attempt=1)], self.shape)
        submission = read_submission(self.folder)
        assert submission is not None, "it has just been written"
        wait = _Wait(self.folder, submission, plan, tell)
        try:
            return wait.wait_for_reports()
        finally:
            cancel_jobs([submission])  # nobody reads what it would still find out

    @property
    def _logs(self) -> Path:
        return self.folder.submitit.absolute()


@dataclass
class _Wait:
    """Waits for the reports of the ranks."""

    folder: DoctorFolder
    submission: Submission
    plan: DoctorPlan
    tell: Tell
    started: float | None = None

    def wait_for_reports(self) -> JobEnd:
        while True:
            reports = self.folder.read_reports()
            if reports and self.started is None:
                self.started = time.time()
            if self._is_complete(reports):
                return self._end()
            state = self._state()
            if state is not None and not state.is_live:
                # What the ranks wrote last may appear a moment after Slurm knows that they have ended.
                time.sleep(POLL_SECONDS)
                return self._end() if self._is_complete(self.folder.read_reports()) else self._end_in_state(state)
            if (late := self._late_end(state)) is not None:
                return late
            time.sleep(POLL_SECONDS)

    def _is_complete(self, reports: list[NodeReport]) -> bool:
        return len(reports) == self.plan.num_ranks and all(map(self._has_all_reports, reports))

    def _has_all_reports(self, report: NodeReport) -> bool:
        measured = report.link_bandwidth_bytes_per_second is not None or (self.plan.num_ranks == 1 and report.device)
        return bool(measured or report.link_error or report.torch_error or not report.token)

    def _state(self) -> SlurmJobState | None:
        try:
            return standings([self.submission])[0].state
        except SlurmSilent:
            return None

    def _late_end(self, state: SlurmJobState | None) -> JobEnd | None:
        """Return the job's end if it has waited or run for too long; None while it has not."""
        waited = time.time() - self.submission.submitted
        if self.started is None and state is not None and not state.is_waiting:
            self.started = time.time()
        if self.started is None:
            self.tell(f"job {self.submission.job_id} waits in the queue")
            if waited < QUEUE_SECONDS:
                return None
            reason = ask("squeue", "--noheader", "--format=%r", f"--jobs={self.submission.job_id}").stdout.strip()
            trouble = f"it was still in the queue after {waited:.0f} s{f' ({reason})' if reason else ''}"
            return self._end(trouble, "Give the command again later; --no-job leaves the job out.")
        self.tell(f"job {self.submission.job_id} runs")
        if time.time() - self.started < RUN_SECONDS:
            return None
        trouble = f"it had not told all after {RUN_SECONDS:.0f} s on the nodes"
        return self._end(trouble, f"See {self.submission.error_of(0)}.")

    def _end_in_state(self, state: SlurmJobState) -> JobEnd:
        self.started = self.started or time.time()
        last_words = [LAST_WORDS.findall(tail(self.submission.error_of(rank))) for rank in range(self.plan.num_ranks)]
        # The rank that fails first has Slurm end the others, and they may not come to a word of their own.
        said = next((words[-1] for words in last_words if words), None)
        why = said or why_ended(self.folder, self.submission, state, self.plan.num_ranks).cause
        return self._end(f"it ended early ({why})", f"See {self.submission.error_of(0)}.")

    def _end(self, trouble: str = "", remedy: str = "") -> JobEnd:
        queued = None if self.started is None else max(0.0, self.started - self.submission.submitted)
        reports = tuple(self.folder.read_reports())
        return JobEnd(self.submission.job_id or "", self.plan.token, reports, trouble, remedy, queued)
