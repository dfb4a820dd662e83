"""Runs a trial folder whose trainer is another program: on this machine, or as one task of a Slurm job."""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from conf.errors import EXIT_FAILED
from conf.plan.experiment import Experiment
from launcher.command_trainer.failure import (
    MAX_ADVICE,
    error_line,
    failure_from_log,
    rank_failure,
    silenced,
    unmeasured_failure,
    wrongly_read,
)
from launcher.command_trainer.figure_parser import figures_in, parser_of
from launcher.command_trainer.log_parser import FoundMetrics, NoMetrics, StepParser
from launcher.command_trainer.performance import environment_of, performance_of, program_code
from launcher.command_trainer.process import (
    CannotStart,
    Programs,
    ProgramSeat,
    ranks_to_read,
    seat_in_slurm,
    seats_here,
    start_of,
)
from train_core.job.failures import failed_measurement, oom_kill_count
from train_core.process.lock import hold_lock
from train_core.process.stop import cancelled_by_signals
from train_core.trial.atomic import is_full
from train_core.trial.folder import Attempt, TrialFolder
from train_core.trial.logs import GrowingFile, last_lines, without_controls
from train_core.trial.measurement import Fault, Measurement, Outcome, Performance, RankFailure, StepMetrics

WAIT_SECONDS = 2.0

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0  # at the disk; a shared one is to be asked no more often
DONE_SECONDS = 30.0
"""So long a program may take to end once its log has said that it is done."""

LAST_LINES_SECONDS = 15.0
"""So long the last lines of another node may take to appear on a network file system."""

LINE_END = re.compile(r"\r\n|\n|\r")  # progress bars rewrite their line after a carriage return


def run_here(folder: Path, devices: tuple[int, ...] = (), time_limit_seconds: float | None = None) -> Measurement:
    """Run the program on this machine, watch its log, and write how it ended to `measurement.json`.

    Cancelled by SIGTERM or SIGINT it ends the program, writes nothing and lets SystemExit or KeyboardInterrupt out, so
    that the trial can be run again.

    Args:
        devices: the GPU of each rank; empty lets the program see what this process sees.

    Raises:
        UsageError: another process runs this trial.
    """
    trial = TrialFolder(folder)
    experiment = trial.read_experiment()
    with hold_lock(trial.running_lock) as lock, cancelled_by_signals():
        trial.clear_results(keeps_steps=True)
        trial.keep_room()
        started = time.time()
        run = ProgramRun(trial, experiment, seats_here(experiment), devices, time_limit_seconds, lock)
        failure = run.failure()
        failed = failure and failed_measurement(experiment.fingerprint, failure, started)
        measurement = failed or run.complete(started)
        trial.write_result(measurement)
    return measurement


def run_as_task(folder: Path, attempt: Attempt) -> None:
    """Be a task that srun started: start its part of the program; the first task writes `measurement.json`.

    A task whose program fails leaves `failures/rank-N.json` and ends the process with a code that ends the job.

    Raises:
        AttemptOver: a later attempt has begun.
    """
    trial = TrialFolder(folder, attempt)
    experiment = trial.read_experiment()
    seat = seat_in_slurm(experiment)
    if trial.completed(experiment):
        return
    trial.require_current()
    # A failure of an earlier run of the job would be taken for one of this run.
    trial.failure_of(seat.first_rank).unlink(missing_ok=True)
    if seat.is_first:
        trial.claim_for_attempt()
        trial.forget_progress(keeps_steps=True)
        trial.keep_room()
    started, before = time.time(), trial.read_measurement()
    if experiment.trainer.start == "once" and not seat.is_first:
        _wait_for_the_first(trial, before)
        return
    with cancelled_by_signals():
        run = ProgramRun(trial, experiment, [seat])
        failure = run.failure()
        if failure is not None:
            trial.write_failure(failure)
            print(f"{failure.traceback}\n{failure.cause}", file=sys.stderr, flush=True)
            sys.exit(EXIT_FAILED)
        if seat.is_first:
            trial.write_result(run.complete(started))


def _wait_for_the_first(trial: TrialFolder, before: Measurement | None) -> None:
    """Keep this node's task alive: a site may end a step some time after its first task has ended.

    A measurement from before is known by its content: times of files are of a server, whose clock may be hours off.
    """
    while (measurement := trial.read_measurement()) is None or measurement == before:
        if measurement is not None and measurement.outcome is Outcome.COMPLETED:
            return  # the first task was faster than this one
        trial.require_current()
        time.sleep(WAIT_SECONDS)


@dataclass
class ProgramRun:
    """One attempt at a trial, of the processes of these seats, which inherit the folder's lock.

    Attributes:
        devices: GPUs of all ranks together, as numbers among the visible ones.
    """

    trial: TrialFolder
    experiment: Experiment
    seats: list[ProgramSeat]
    devices: tuple[int, ...] = ()
    time_limit_seconds: float | None = None
    lock: int | None = None
    book: StepParser = field(init=False)

    def __post_init__(self) -> None:
        # A program may have saved, nobody knows where; what an earlier attempt told of stays until this one tells.
        self._told_before = self.trial.read_metrics()
        self._num_recorded = 1
        self.book = parser_of(
            self.experiment, self._told_before[-1].step if self._told_before else 0, self.trial.read_objective()
        )
        self.metrics = FoundMetrics(self.experiment.trainer.metrics)
        # Every task but the first only waits for its program: what there is to read is read once.
        self._reads = self.seats[0].is_first
        self.logs = [self.trial.rank_log(rank) for rank in ranks_to_read(self.experiment, self.seats)]
        self._held_logs = _held(self.trial.logs)
        self._tails = [LogTail(self._held_logs / log.name) for log in self.logs]
        self._heard = self._looked = time.monotonic()
        self._was_full = False
        self._done_since: float | None = None
        self._code = ""

    def complete(self, started: float) -> Measurement:
        trains = self.experiment.trainer.trains
        performance = self._performance() if trains else None
        assert trains == (performance is not None)
        return Measurement(
            fingerprint=self.experiment.fingerprint,
            outcome=Outcome.COMPLETED,
            cause="",
            performance=performance,
            environment=environment_of(self.experiment, self._code),
            started=started,
            ended=time.time(),
            metrics=self.metrics.in_folder(self.trial.path) | figures_in(self.book),
        )

    def failure(self) -> RankFailure | None:
        """Start the program and follow it to its end; None where it ended well and has told of its steps."""
        # Counted before the start, as the kernel's counter goes on since the machine was booted.
        oom_kills, programs = oom_kill_count(), self._programs()
        try:
            programs.start()
            failure = self._follow(programs, oom_kills)
            return silenced(failure, self.logs[0]) if self._was_full else failure
        except CannotStart as refusal:
            return rank_failure(Fault.INPUT, str(refusal), "", self.seats[0].first_rank)
        finally:
            programs.end()
            self._read()  # what it printed meanwhile, which the next attempt may not print again

    def _programs(self) -> Programs:
        share = len(self.devices) // len(self.seats)
        starts = [
            start_of(self.trial, self.experiment, seat, self.devices[index * share : (index + 1) * share])
            for index, seat in enumerate(self.seats)
        ]
        # Before the start: what somebody edits while the program runs is not what it ran.
        if self._reads:
            self._code = program_code(starts[0].words, Path(starts[0].working_dir or "").absolute())
        ends_its_workers = self.experiment.trainer.start == "torchrun"
        return Programs(starts, ends_its_workers=ends_its_workers, inherited=() if self.lock is None else (self.lock,))

    def _follow(self, programs: Programs, oom_kills: int) -> RankFailure | None:
        """Read on until the program has ended, failed, hangs or has taken too long."""
        deadline = time.monotonic() + (self.time_limit_seconds or float("inf"))
        while True:
            codes = programs.exit_codes()
            self._look_at_disk(has_ended=any(code is not None for code in codes))
            self._read()
            if self.book.error:
                return error_line(self.book.error, self.logs[0])
            failed = [index for index, code in enumerate(codes) if code]
            # A program that has said that it is done may leave with any code, as some do while they end their workers.
            if failed and not self.book.is_done:
                self._read_to_the_end()
                seat = self.seats[failed[0]]
                log, code = self.trial.rank_log(seat.first_rank), codes[failed[0]]
                assert code is not None
                return failure_from_log(log, seat.first_rank, code, oom_kill_count() - oom_kills)
            if all(code is not None for code in codes) or self._is_done_long_enough():
                return self._log_failure()
            if (end := self._deadline_failure(deadline)) is not None:
                return end
            time.sleep(POLL_SECONDS)

    def _look_at_disk(self, *, has_ended: bool) -> None:
        if not self._was_full and ((now := time.monotonic()) - self._looked > LOOK_SECONDS or has_ended):
            self._looked, self._was_full = now, is_full(self._held_logs)

    def _read(self) -> None:
        for source, log in enumerate(self._tails):
            if lines := log.lines():
                self._heard = time.monotonic()
                self._hear(lines, source)

    def _hear(self, lines: list[str], source: int) -> None:
        if not self._reads:
            return
        for line in lines:
            self.metrics.hear(line)
            for metrics in self.book.hear(line, source):
                self._record(metrics)

    def _record(self, metrics: StepMetrics) -> None:
        """Add a step; where an attempt begins, or its program went back, it takes the place of all from there on."""
        if len(self.book.steps) <= self._num_recorded:
            self._told_before = self.trial.rewind_metrics(metrics.step - 1)
        self._num_recorded = len(self.book.steps)
        self.trial.append_metrics(metrics)

    def _steps(self) -> list[StepMetrics]:
        """Those of earlier attempts up to where this one went on, and its own."""
        return list({step.step: step for step in (*self._told_before, *self.book.steps)}.values())

    def _read_to_the_end(self) -> None:
        """Read the lines that were written last, also on another node."""
        deadline = time.monotonic() + (LAST_LINES_SECONDS if self.seats[0].num_nodes > 1 and self._reads else 0.0)
        while True:
            self._read()
            steps = self.experiment.training.num_steps if self.experiment.trainer.trains else 0
            told_all = len(self._steps()) >= steps
            if told_all or time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
        # Now a line without an end is whole, because nobody will go on with it.
        for source, log in enumerate(self._tails):
            self._hear(log.last_words(), source)
        for metrics in self.book.close():
            if self._reads:
                self._record(metrics)

    def _is_done_long_enough(self) -> bool:
        if self.book.is_done and self._done_since is None:
            self._done_since = time.monotonic()
        return self._done_since is not None and time.monotonic() - self._done_since > DONE_SECONDS

    def _log_failure(self) -> RankFailure | None:
        """Return the failure that the log tells of; None if it has told what there is to measure."""
        if not self._reads:
            return None
        self._read_to_the_end()
        if self.book.error:
            return error_line(self.book.error, self.logs[0])
        log = self.experiment.trainer.log
        if log.done is not None and not self.book.is_done:
            cause = f"the program exited with code 0, and no line of its log matches trainer.log.done = {log.done!r}"
            return rank_failure(Fault.UNREAD, cause, last_lines(*self.logs), 0, blamed=False)
        if self.experiment.trainer.trains and (cause := wrongly_read(self.book, self.logs)):
            return rank_failure(Fault.UNREAD, cause, last_lines(*self.logs), 0, blamed=False, most=MAX_ADVICE)
        if self.experiment.trainer.trains and self._performance() is None:
            return unmeasured_failure(self.book, self.logs)
        try:
            self.metrics.in_folder(self.trial.path)
        except NoMetrics as lack:
            return rank_failure(Fault.INPUT, str(lack), last_lines(*self.logs), 0, blamed=False)
        return None

    def _performance(self) -> Performance | None:
        book = self.book
        memory = book.memory_bytes
        if memory is None and self.experiment.cluster.device.kind == "cpu":
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # of the largest process, in KiB
        return performance_of(self.experiment, self._steps(), book.tflops, memory, book.untimed)

    def _deadline_failure(self, deadline: float) -> RankFailure | None:
        if time.monotonic() > deadline:
            cause = f"the trial ran longer than its limit of {self.time_limit_seconds:g} s"
            return rank_failure(Fault.TIME, cause, last_lines(*self.logs), 0, blamed=False)
        silence, most = time.monotonic() - self._heard, self.experiment.watch.hang_seconds
        if self._reads and silence > most:
            cause = f"hangs: no line in its log for {silence:.0f} s (watch.hang_seconds = {most:g})"
            return rank_failure(Fault.HANG, cause, last_lines(*self.logs), 0, blamed=False)
        return None


def _held(folder: Path) -> Path:
    """The folder under a name that stays right where it is moved, or a link above it is turned, while programs run."""
    folder.mkdir(exist_ok=True)
    held = Path(f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}")
    return held if held.exists() else folder


class LogTail:
    """The lines of a log, read on from where it stopped. A line without an end waits until it has one."""

    def __init__(self, path: Path) -> None:
        self._file, self._rest = GrowingFile(path), ""

    def lines(self) -> list[str]:
        """The lines that were completed since the last call, without colours."""
        *whole, self._rest = LINE_END.split(self._rest + "".join(self._file.news()))
        return [without_controls(line) for line in whole]

    def last_words(self) -> list[str]:
        """Return what follows the last line's end: to be asked for when nobody writes any more."""
        rest, self._rest = self._rest, ""
        return [without_controls(rest)] if rest else []
