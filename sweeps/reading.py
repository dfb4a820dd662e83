"""The state of a training, read from its folder: one rule each for its outcome and its cause.

Status, report, MLflow, long trainings and reruns all ask this value, so that they cannot give different answers.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

from conf.plan.experiment import Experiment
from conf.plan.knobs import label_of_point
from conf.private_files import unreadable
from sweeps.folder.submission import (
    EndedAttempt,
    Submission,
    claim_of,
    ended_attempt,
    last_line,
    log_of,
    read_attempts,
    read_submission,
)
from sweeps.trial import SweepRecord, Trial, change_time, is_sharp, sight
from train_core.checkpoints.checkpoint_folder import last_whole, step_of
from train_core.job.failures import first_cause
from train_core.trial.folder import DAMAGED, TrialFolder, last_attempt, steps_of
from train_core.trial.measurement import Measurement, Outcome, Performance, RankFailure, StepMetrics

INTERRUPTED = "its last attempt was interrupted; the next sweep runs it again"
STOPPED = "it was stopped; `trisweep train --from-best` goes on from its last checkpoint"
CANCELLED_BY_NAME = "cancelled by name: only `trisweep retry --trial` runs it again"
CALLED_OFF = "the sweep was cancelled before its turn came"
ENDED_JUST_NOW = "its job has ended ({}), and its last word is waited for, for up to a minute"
LEFT_OUT = "left out: beyond sweep.max_trials"
ASKED_EARLIER = "an earlier command asked for it, and has not measured it"
_ANY = TrialFolder("any")
DECIDING = tuple(file.name for file in (_ANY.measurement, _ANY.submission, _ANY.metrics))
"""The files that alone say how a trial stands once it has a measurement, or is not to be run."""
KEPT = frozenset({"_listing", "_stored_measurement", "is_foreign", "measurement", "submission"})
"""What a reading has found of its folder that holds until the folder changes."""


class JobState(Protocol):
    """The state of a job that runs or ran a training, as Slurm or the machine which runs it knows it."""

    @property
    def name(self) -> str: ...

    @property
    def is_live(self) -> bool: ...

    @property
    def is_waiting(self) -> bool: ...

    @property
    def why_given_up(self) -> str: ...

    @property
    def cause(self) -> str: ...

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The state of one training when it was read. Only steps and logs are read later, when they are asked for.

    Attributes:
        experiment: what is trained; None of a trial that cannot exist.
        job: how its job stands, where Slurm or this machine was asked and knew it.
    """

    folder: TrialFolder
    experiment: Experiment | None
    job: JobState | None = None
    _seen: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Judge now: a reading that is kept does not follow the folder."""
        object.__setattr__(self, "_seen", sight(self.folder.path))
        _ = self.outcome

    def told(self, job: JobState | None) -> Self:
        """The reading with what is said of its job; of a folder into which nothing came since, its files are kept.

        What is in them is put there whole, under their names, which changes the folder's own time.
        """
        if not is_sharp(self._seen) or sight(self.folder.path) != self._seen:
            return replace(self, job=job)
        given = {field.name for field in fields(self)}
        again = copy.copy(self)
        for name in vars(self).keys() - given - KEPT:
            del vars(again)[name]
        vars(again)["job"] = job
        _ = again.outcome
        return again

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def planned(self) -> Experiment:
        """The experiment of a trial that can exist."""
        assert self.experiment is not None
        return self.experiment

    @property
    def is_of_program(self) -> bool:
        """True if another program than this package's trainer does the work."""
        return self.experiment is not None and not self.experiment.trainer.is_own

    @property
    def title(self) -> str:
        """The name by which people see it in tables and progress."""
        return self.name

    @property
    def outcome(self) -> Outcome | None:
        """The way it ended, or its state until then; None if the sweep left the trial out (`sweep.max_trials`)."""
        return self._judgement[0]

    @property
    def cause(self) -> str:
        """The reason for its outcome, in one sentence for people; empty if there is nothing to explain."""
        return self._judgement[1]

    @property
    def is_called_off(self) -> bool:
        """True of a trial whose sweep was cancelled before it was submitted: nothing ended that could say so."""
        return self.outcome is Outcome.CANCELLED and self.measurement is None

    @cached_property
    def measurement(self) -> Measurement | None:
        """The measurement that it left at its end; None while there is none of this experiment."""
        return None if self.is_foreign else self._stored_measurement

    @property
    def performance(self) -> Performance | None:
        return self.measurement.performance if self.measurement else None

    @property
    def metrics(self) -> dict[str, float]:
        """Figures under names of its program's own; empty where it has none, or not yet."""
        return self.measurement.metrics if self.measurement else {}

    @cached_property
    def is_foreign(self) -> bool:
        """The measurement in the folder is of another experiment: it counts for nothing, and is measured again."""
        stored = self._stored_measurement
        return stored is not None and stored.fingerprint != self.planned.fingerprint

    @cached_property
    def submission(self) -> Submission | None:
        return read_submission(self.folder)

    @property
    def steps(self) -> tuple[StepMetrics, ...]:
        """The optimizer steps on record; of one that has ended they are read anew, as thousands keep too many."""
        return self._steps_so_far if self.measurement is None else tuple(steps_of(self.step_lines))

    @cached_property
    def _steps_so_far(self) -> tuple[StepMetrics, ...]:
        return tuple(steps_of(self.step_lines))

    @property
    def step_lines(self) -> bytes:
        """The file that the steps are in: where it is the same as before, so are they, and need not be taken apart."""
        return self._lines_so_far if self.measurement is None else self.folder.read_step_lines()

    @cached_property
    def _lines_so_far(self) -> bytes:
        return b"" if self.is_foreign else self.folder.read_step_lines()

    @cached_property
    def failure(self) -> RankFailure | None:
        """The report of the rank that failed first, if any rank did."""
        return first_cause(self.folder.read_failures()) if "failures" in self._listing else None

    @cached_property
    def damaged_files(self) -> tuple[Path, ...]:
        """Damaged files that were put aside, now or earlier."""
        # Files are put aside when they are read. A trial with a measurement no longer needs its other files, so that
        # they are not read just to find out whether they are damaged.
        if self.measurement is None and self._listing:
            _ = self.failure
            if self.submission is not None:
                self.folder.put_aside_damaged_trial()
            return tuple(self.folder.damaged_files())
        return self._put_aside

    @property
    def failing_rank(self) -> int | None:
        if self.measurement is not None:
            return self.measurement.failing_rank
        return self.failure.blamed if self.failure and self._is_failure_all else None

    @property
    def traceback(self) -> str | None:
        if self.measurement is not None:
            return self.measurement.traceback
        return self.failure.traceback if self.failure and self._is_failure_all else None

    @property
    def job_id(self) -> str | None:
        return self.submission.job_id if self.submission else None

    @property
    def scheduler_state(self) -> str | None:
        """Slurm's word for its job, where Slurm was asked."""
        return self.job.name if self.job and self.is_in_slurm else None

    @property
    def is_in_slurm(self) -> bool:
        """True if its job is one of Slurm's, or of a scheduler in its place."""
        return self.submission is not None and self.submission.executor != "local"

    @property
    def is_silent_in_slurm(self) -> bool:
        """True if its job is one of Slurm's that has left no measurement; whether it still lives, Slurm alone knows."""
        return self.measurement is None and self.is_in_slurm

    @property
    def num_steps_done(self) -> int:
        return self._last_step.step if self._last_step else 0

    @property
    def num_steps(self) -> int:
        return self.experiment.training.num_steps if self.experiment else 0

    @property
    def step_seconds(self) -> float | None:
        """The last step's duration; of a completed training, as measured. Rate and loss follow the same rule."""
        return self._newest.step_seconds if self._newest else None

    @property
    def model_flops_per_second_per_device(self) -> float | None:
        return self._newest.model_flops_per_second_per_device if self._newest else None

    @property
    def loss(self) -> float | None:
        newest = self._newest
        return newest.loss if isinstance(newest, StepMetrics) else newest.final_loss if newest else None

    def figure(self, name: str) -> float | None:
        """What its program printed under this name, at its end or last; None where it has not."""
        printed = self.metrics or (self._last_step.figures if self._last_step else {})
        return printed.get(name)

    @property
    def start_time(self) -> float | None:
        if self.measurement is not None:
            return self.measurement.started
        return self.submission.submitted if self.submission else None

    @property
    def end_time(self) -> float | None:
        return self.measurement.ended if self.measurement else None

    @cached_property
    def heartbeat_age_seconds(self) -> float | None:
        """Seconds since the last sign of life; None before the first."""
        beat = self._heartbeat
        # The file server's clock may be ahead of this machine's.
        return None if beat is None else max(0.0, time.time() - beat)

    @cached_property
    def log(self) -> Path | None:
        return log_of(self.folder, self.submission, self.failing_rank, of_program=self.is_of_program)

    @property
    def last_log_line(self) -> str:
        return last_line(self.log)

    @property
    def next_attempt(self) -> int:
        begun = last_attempt(self.folder.claim)  # where the submission is lost, the job that it named may still write
        told = [attempt.number for attempt in self.earlier_attempts]
        return 1 + max(self.submission.attempt if self.submission else 0, begun.number if begun else 0, *told, 0)

    @property
    def num_runs(self) -> int:
        """How often Slurm has started the job of the last attempt, as far as is known: every run is charged."""
        claimed = claim_of(self.folder, self.submission)
        return 1 if claimed is None else 1 + claimed.restarts

    @cached_property
    def earlier_attempts(self) -> tuple[EndedAttempt, ...]:
        return read_attempts(self.folder)

    @property
    def ended_attempts(self) -> tuple[EndedAttempt, ...]:
        """The ends of all attempts that brought no result, the last one too."""
        last = self.measurement
        if last is None or last.outcome is Outcome.COMPLETED:
            return self.earlier_attempts
        return (*self.earlier_attempts, ended_attempt(self.submission.attempt if self.submission else 1, last))

    @property
    def code(self) -> str:
        """A digest of the trainer, or of the program's scripts, that measured it; empty where none is known."""
        environment = self.measurement.environment if self.measurement else None
        return environment.trainer_code if environment else ""

    @property
    def awaits_slurm(self) -> bool:
        """True if its last job is one of Slurm's that may still run, as nobody has found that it ended.

        Where a job has ended without a measurement, `launcher.slurm.reconcile.reconcile` writes one.
        """
        if self.job is not None and self.job.cause and not self.job.is_live:
            return False
        lives = self.job is not None and self.job.is_live
        return self.is_silent_in_slurm and (lives or not self._lost_result)

    @cached_property
    def _judgement(self) -> tuple[Outcome | None, str]:
        """Outcome and cause, from the surest witness to the weakest."""
        if self.measurement is not None:
            return self.measurement.outcome, self.measurement.cause
        if self.job is not None and self.job.cause:  # Slurm cannot be asked here, or has never had the job
            return self._as_steps_tell, self.job.cause
        # A job that was requeued waits beside the failures of its earlier run, which say nothing about the coming one.
        if self.job is not None and self.job.is_waiting:
            why = self.job.why_given_up
            return Outcome.PENDING, f"Slurm could not start its job, and holds it ({why})" if why else ""
        # While a job lives, a rank's failure is not yet the end: the ranks that it takes along may still say more.
        if self._is_live:
            return Outcome.RUNNING, self.failure.cause if self.failure else ""
        if self._lost_result:
            return Outcome.PENDING, self._lost_result
        if self.job is not None:  # it ended a moment ago, and its own word may still come
            said = f"; so far it said: {self.failure.cause}" if self.failure else ""
            return Outcome.RUNNING, f"{ENDED_JUST_NOW.format(self.job.name)}{said}"
        if self.failure is not None:
            return self.failure.outcome, self.failure.cause
        if self.is_in_slurm:
            return self._as_steps_tell, ""
        if self.submission is not None:
            return Outcome.PENDING, INTERRUPTED
        return Outcome.PENDING, STOPPED if self.steps else ""  # a person's own training here has no submission

    @property
    def _as_steps_tell(self) -> Outcome:
        """The outcome where nobody knows how the job stands: a training that has made steps is assumed to go on."""
        return Outcome.RUNNING if self.folder.metrics.name in self._listing else Outcome.PENDING

    @property
    def _newest(self) -> Performance | StepMetrics | None:
        return self.performance or self._last_step

    @cached_property
    def _last_step(self) -> StepMetrics | None:
        """The last step on record; of a training that is to run again, the last that its checkpoint has saved."""
        steps = self.steps  # of one that has ended, each look reads its file
        if not steps or self.outcome is not Outcome.PENDING:
            return steps[-1] if steps else None
        last = last_whole(self.folder.checkpoints, warns=False)
        saved = step_of(last) if last else 0
        return next((step for step in reversed(steps) if step.step <= saved), None)

    @property
    def _is_failure_all(self) -> bool:
        """True if a rank's failure is all that is known, because nobody has concluded yet how the training ended."""
        return self.failure is not None and self.outcome is self.failure.outcome

    @property
    def _is_live(self) -> bool:
        if self.job is not None:
            return self.job.is_live
        return not self.is_in_slurm and self.folder.running_lock.name in self._listing and self.folder.is_running_here()

    @cached_property
    def _lost_result(self) -> str:
        """The reason why the measurement that the last attempt left cannot be used; empty if there is no such file."""
        name = self.folder.measurement.name
        if self.is_foreign:
            return f"{name} belongs to another experiment and is ignored; the next run replaces it"
        aside = [path for path in self._put_aside if path.name.startswith(self.folder.measurement.stem)]
        if self._stored_measurement is not None or not aside:
            return ""
        # The file system's times alone are compared, as the clocks of the machines may differ.
        newest = max(aside, key=lambda path: sight(path)[1:2])  # by the time of its present name
        put_aside = max(sight(newest)[1:2], default=0) / 1e9
        alive = max(self._heartbeat or 0.0, change_time(self.folder.submission))
        if put_aside < alive:  # it was of an earlier attempt
            return ""
        return f"{name} was corrupt and is now {newest.name}; the next run measures again"

    @cached_property
    def _stored_measurement(self) -> Measurement | None:
        return self.folder.read_measurement() if self.experiment else None

    @cached_property
    def _listing(self) -> frozenset[str]:
        """Names in the folder. They take one call instead of one for each file, because thousands of folders are read.

        The measurement and the submission are read first: if one is damaged it gets a new name, which must be listed.
        """
        _ = self.submission, self._stored_measurement
        try:
            return frozenset(os.listdir(self.folder.path))  # noqa: PTH208 (a Path for each name takes long)
        except PermissionError as error:
            raise unreadable(self.folder.path, error) from None
        except OSError:
            return frozenset()

    @cached_property
    def _put_aside(self) -> tuple[Path, ...]:
        return tuple(sorted(self.folder.path / name for name in self._listing if DAMAGED in name))

    @cached_property
    def _heartbeat(self) -> float | None:
        return (change_time(self.folder.heartbeat) or None) if self.folder.heartbeat.name in self._listing else None


@dataclass(frozen=True, kw_only=True)
class TrialReading(Reading):
    """The state of one trial of a sweep.

    Attributes:
        figures: what later stages measured of it, as `STAGE.FIGURE`; see `sweeps.sweep.with_figures`.
        record: its sweep's, by which it is called; of one that is read alone, None.
        code_of_label: the code that its label says, because others measured the same point.
        waits_again: it has ended, and waits for another attempt that a person wants or that its sweep allows.
        is_of_cancelled_sweep: nobody starts it until the sweep's command is given again.
    """

    trial: Trial
    record: SweepRecord | None = None
    code_of_label: str = ""
    waits_again: bool = False
    is_of_cancelled_sweep: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    awaits_figures: bool = False

    @cached_property
    def label(self) -> str:
        """What it is called in its sweep, see `sweeps.labels`; of one that is read alone, its layout."""
        alone = self.experiment.label if self.experiment else label_of_point(self.trial.point)
        label = self.record.label_of(self.trial) if self.record is not None else alone
        return f"{label} (code {self.code_of_label})" if self.code_of_label else label

    @property
    def title(self) -> str:
        label = self.label or self.name
        return f"{label} (run {self.trial.repeat + 1})" if self.trial.repeat else label

    @property
    def shares_devices(self) -> bool:
        """True if fewer devices than ranks measured it, so that ranks took turns, as on a CPU with few cores."""
        performance, experiment = self.performance, self.experiment
        return bool(performance and experiment and performance.num_devices < experiment.parallel.world_size)

    @cached_property
    def timed_seconds(self) -> tuple[float, ...]:
        """The seconds of every step on record that counts: neither a warm-up step nor one that was traced."""
        traced = self.experiment.profile.trace_steps if self.experiment else ()
        return tuple(step.step_seconds for step in self.steps if not step.warmup and step.step not in traced)

    @cached_property
    def _judgement(self) -> tuple[Outcome | None, str]:
        if self.measurement is None and self.trial.infeasible_reason is not None:
            return Outcome.INFEASIBLE, self.trial.infeasible_reason
        if self.measurement is None and not self.trial.selected and not (self.awaits_slurm or self._is_live):
            return None, LEFT_OUT if self.trial.role == "asked" else ASKED_EARLIER
        judged = super()._judgement
        if self.is_of_cancelled_sweep and self.submission is None and judged == (Outcome.PENDING, ""):
            return Outcome.CANCELLED, CALLED_OFF
        return judged
