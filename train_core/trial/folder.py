"""Folders in which jobs work, and their file names: the contract between the trainer, the launcher and the results.

Slurm may start a job again while ranks of its earlier run are still alive, because the daemon that should have ended
them died first. Rank 0 of the new run therefore writes its attempt into the folder, and every writer looks there
before it writes: who finds a later attempt than its own is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from conf.credentials import values_behind
from conf.errors import FULL_ERRORS
from conf.plan.experiment import Experiment
from conf.private_files import unreadable
from conf.types.schema import share_given_fields
from train_core.trial.atomic import (
    append_whole,
    keep_room,
    replacing,
    room_of,
    stored_values,
    when_not_full,
    write_atomically,
    write_in_room,
)
from train_core.trial.measurement import Measurement, Outcome, RankFailure, Standing, StepMetrics
from train_core.trial.timeline import StageTimeline

Model = TypeVar("Model", bound=BaseModel)
RESULT = "trisweep measured: "
"""So begins the line in which a job prints its measurement."""

DAMAGED = ".corrupt-"
"""The mark before the time (in seconds since the epoch) in the name of a damaged file that was put aside."""


class PathInside:
    """The path of a file or folder inside a folder, made when it is asked for: of thousands of folders few are."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: JobFolder, owner: type[JobFolder]) -> Path:
        return folder.path / self.name


class JobFolder:
    """A folder in which a job works.

    Given an attempt, every method that writes first looks whether a later one works here, and raises AttemptOver.

    submission.json     Slurm's or the local executor's job ids; written by the launcher
    attempt             the `Attempt` that Slurm started last; written by its rank 0
    attempts.jsonl      how earlier attempts ended that brought no result; written by the launcher
    failures/           `rank-N.json`: one `RankFailure` for every rank that caught its own exception
    running.lock        held (flock) by the job while it runs on this machine, or by the rank 0 that a launcher started
    logs/               standard output and error of the job, and of every rank in `rank-N.log`
    code/               the code as it was when a job was submitted that no sweep submits
    provenance.json     where and with what the last attempt ran: devices, driver, modules, variables on a list
    slurm_job.json      what Slurm's accounting said of the last job, once it had ended
    submitit/           what such a job through Slurm is to do, its script and its output
    NAME.corrupt-TIME   a file of the folder that could not be read, and was put aside
    """

    submission = PathInside("submission.json")
    claim = PathInside("attempt")
    attempts = PathInside("attempts.jsonl")
    failures = PathInside("failures")
    running_lock = PathInside("running.lock")
    logs = PathInside("logs")
    code = PathInside("code")
    submitit = PathInside("submitit")
    slurm_job = PathInside("slurm_job.json")

    def __init__(self, path: Path | str, attempt: Attempt | None = None) -> None:
        self.path = path if isinstance(path, Path) else Path(path)  # of thousands, none is taken apart twice
        self.attempt = attempt

    def claim_for_attempt(self) -> None:
        """Rank 0 takes the folder; from now on earlier attempts can write nothing here."""
        if self.attempt is not None:
            self.require_current()
            write_atomically(self.claim, f"{self.attempt}\n", durable=False)

    def require_current(self) -> None:
        """Raises AttemptOver where a later attempt than this process belongs to has begun."""
        if self.attempt is not None and (last := last_attempt(self.claim)) is not None and last > self.attempt:
            raise AttemptOver(f"attempt {self.attempt} is over: attempt {last} works in {self.path}")

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def failure_of(self, rank: int) -> Path:
        return self.failures / f"rank-{rank:05d}.json"

    def write_failure(self, failure: RankFailure) -> None:
        self.require_current()
        write_atomically(self.failure_of(failure.rank), failure.model_dump_json(indent=1))

    def read_failures(self) -> list[RankFailure]:
        """The failures that ranks wrote when they ended, the earliest first."""
        read = (self.read(RankFailure, path) for path in self.failures.glob("rank-*.json"))
        return sorted((failure for failure in read if failure), key=lambda failure: failure.time)

    def forget_failures(self) -> None:
        for path in self.failures.glob("rank-*.json"):
            path.unlink(missing_ok=True)

    def read(self, model: type[Model], path: Path) -> Model | None:
        """Read a file of this folder; None where it is not there, or is damaged and has been put aside.

        Raises:
            UsageError: it is there, and this user may not read it.
        """
        if (content := self.content(path)) is None:
            return None
        if (found := _parse(model, content)) is None:
            self.put_aside(path)
        return found

    def content(self, path: Path) -> bytes | None:
        """The content of a file, not taken apart; None where it is not there, or is none and has been put aside."""
        try:
            with io.FileIO(os.fspath(path)) as file:  # Python's own buffers would cost more than a small file
                return file.readall()
        except IsADirectoryError:
            self.put_aside(path)
        except PermissionError as error:  # what another user has measured is not measured again
            raise unreadable(path, error) from None
        except OSError:  # not there, or just being replaced on a network file system
            pass
        return None

    def put_aside(self, path: Path) -> None:
        """Rename a damaged file, so that it is kept, hides nothing, and is not taken for a result."""
        with contextlib.suppress(OSError):  # another reader was faster, or the folder is not ours to write
            path.rename(self.path / f"{path.stem}{DAMAGED}{int(time.time())}{path.suffix}")

    def damaged_files(self) -> list[Path]:
        """The damaged files that were put aside here."""
        return sorted(self.path.glob(f"*{DAMAGED}*"))

    def is_running_here(self) -> bool:
        """True if a job of this machine, its supervisor or one of its ranks, holds the folder."""
        return is_held(self.running_lock)


def is_held(lock: Path) -> bool:
    """True if a process holds the lock (flock) now. One that is got here is let go at once."""
    try:
        descriptor = _open_to_lock(lock)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system knows no locks
        return False
    finally:
        os.close(descriptor)
    return False


def _open_to_lock(lock: Path) -> int:
    try:
        return os.open(lock, os.O_RDWR)  # NFS gives no lock to who may only read
    except PermissionError:
        return os.open(lock, os.O_RDONLY)


class TrialFolder(JobFolder):
    """One trial, or one long training, on disk; besides what every job's folder has:

    trial.json          the experiment and where the trial belongs; written by the launcher before it submits
    heartbeat           touched by rank 0 at every step
    metrics.jsonl       one `StepMetrics` a line, appended by rank 0
    checkpoints/        step-000100/ and so on; see `checkpoint_folder`
    tokenizer.json      of the text that a training with checkpoints is trained on, in Hugging Face's format
    waits/              while a job seems to hang: `alarm`, and one `Standing` for every rank in `rank-N.json`
    measurement.json    a `Measurement`, once the trial has ended
    .NAME.room          holds room on the disk for NAME while the job runs
    starting.lock       of a long training: held (flock) while it is submitted, and while it trains on this machine
    tracking_id         names a long training in MLflow, wherever the folder is moved; a copy of it gets another
    timeline/           when the passes of one timed step ran: a `StageTimeline` of every stage in `stage-N.json`; the
                        trainer's own alone
    traces/             Chrome traces of torch's profiler, `step-N-rank-N.json.gz`
    ../../tokens/       tokens of all trainings beside each other, so that those over the same text share them
    """

    trial = PathInside("trial.json")
    private = PathInside("private.json")
    heartbeat = PathInside("heartbeat")
    metrics = PathInside("metrics.jsonl")
    checkpoints = PathInside("checkpoints")
    tokenizer = PathInside("tokenizer.json")
    waits = PathInside("waits")
    alarm = PathInside("waits/alarm")
    measurement = PathInside("measurement.json")
    starting_lock = PathInside("starting.lock")
    tracking_id = PathInside("tracking_id")
    timeline = PathInside("timeline")
    traces = PathInside("traces")

    def __init__(self, path: Path | str, attempt: Attempt | None = None) -> None:
        super().__init__(path, attempt)
        self._unwritten = list[str]()  # lines of metrics that the disk has not taken yet

    @property
    def tokens(self) -> Path:
        """The folder of tokens unless the experiment names one: beside the folder of all trainings."""
        return self.path.resolve().parents[1] / "tokens"

    def write_trial(self, trial: dict[str, Any]) -> None:
        """Write `trial.json`; `trial` holds at least `experiment`, the experiment as plain values.

        What stands in it for hidden values has a file of its own.
        """
        text = to_json(trial, indent=1).decode()
        if values := values_behind(text):
            write_atomically(self.private, to_json(values).decode())
        write_atomically(self.trial, text, durable=False)

    def holds_experiment(self, experiment: dict[str, Any]) -> bool:
        """True if `trial.json` is there and names exactly this experiment, as plain values."""
        return self._stored_experiment() == json.loads(json.dumps(experiment))

    def put_aside_damaged_trial(self) -> None:
        """Put `trial.json` aside unless it holds an experiment; nothing happens where it is not there."""
        if self._stored_experiment() is None:
            self.put_aside(self.trial)

    def _stored_experiment(self) -> object:
        return stored_values(self.trial).get("experiment")

    def read_experiment(self) -> Experiment:
        return Experiment.model_validate_json(json.dumps(json.loads(self.trial.read_text())["experiment"]))

    def read_objective(self) -> tuple[str, ...]:
        """What is sought by the command that started the trial; empty where nobody has said it."""
        return tuple(stored_values(self.trial).get("objective", ()))

    def completed(self, experiment: Experiment) -> Measurement | None:
        """The measurement of just this experiment, once it has completed."""
        known = self.read_measurement()
        wanted = (Outcome.COMPLETED, experiment.fingerprint)
        return known if known is not None and (known.outcome, known.fingerprint) == wanted else None

    def clear_results(self, *, keeps_steps: bool = False) -> None:
        """Forget what an earlier attempt left, so that a new one starts clean, or goes on from its checkpoints."""
        self.forget_progress(keeps_steps=keeps_steps)
        self.forget_failures()
        for path in self.waits.glob("*"):
            path.unlink(missing_ok=True)

    def forget_progress(self, *, keeps_steps: bool = False) -> None:
        """Delete what ranks wrote. Metrics, timeline and traces stay where a checkpoint may go on from them.

        Args:
            keeps_steps: they stay anyway, as of another program nobody knows whether it has saved.
        """
        self.require_current()
        of_steps = (self.metrics, *self.timeline.glob("*.json"), *self.traces.glob("*.gz"))
        anew = () if keeps_steps or self.checkpoints.exists() else of_steps
        for path in (self.heartbeat, self.measurement, *anew):
            path.unlink(missing_ok=True)

    def rewind_metrics(self, step: int) -> list[StepMetrics]:
        """The metrics up to a step; the file keeps no others, because they will be measured again."""
        self.require_current()
        kept = [metrics for metrics in self.read_metrics() if metrics.step <= step]
        if self.metrics.exists():
            write_atomically(self.metrics, "".join(metrics.model_dump_json() + "\n" for metrics in kept))
        return kept

    def append_metrics(self, metrics: StepMetrics) -> None:
        """Add a line. Where the disk takes none, as a full one, it is said once, and tried again after every step."""
        self.require_current()
        self._unwritten.append(metrics.model_dump_json() + "\n")
        try:
            self._append_unwritten()
            self.heartbeat.touch()
        except OSError as error:
            if len(self._unwritten) == 1:
                how = f"{self.metrics} cannot be written ({error.strerror})"
                with contextlib.suppress(OSError):  # the log may lie on the same disk
                    print(f"{how}: lines from step {metrics.step} on are tried again after every step", flush=True)

    def _append_unwritten(self) -> None:
        append_whole(self.metrics, "".join(self._unwritten))
        self._unwritten.clear()

    def read_metrics(self) -> list[StepMetrics]:
        """The metrics of all whole lines; one that is still being written, or was torn by a kill, is left out."""
        return list(steps_of(self.read_step_lines()))

    def read_step_lines(self) -> bytes:
        """The content of the metrics' file, not taken apart; empty where it is not there, or was put aside."""
        return self.content(self.metrics) or b""

    def raise_alarm(self) -> bool:
        """Ask every rank where it stands; True for the first that asks."""
        self.require_current()
        self.waits.mkdir(parents=True, exist_ok=True)
        try:
            self.alarm.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def write_standing(self, standing: Standing) -> None:
        self.require_current()
        write_atomically(self._standing_of(standing.rank), standing.model_dump_json(indent=1))

    def _standing_of(self, rank: int) -> Path:
        return self.waits / f"rank-{rank:05d}.json"

    def time_of_standing(self, rank: int) -> float:
        """The time, of the file system, at which a rank last wrote where it stands."""
        return self._standing_of(rank).stat().st_mtime

    def read_standing(self, rank: int, not_before: float) -> Standing | None:
        """The standing of a rank; None if it has written none since `not_before`, in the file system's time."""
        path = self._standing_of(rank)
        try:
            return _parse(Standing, path.read_bytes()) if path.stat().st_mtime >= not_before else None
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def writing_trace(self, step: int, rank: int) -> Iterator[Path]:
        """A draft to write, which becomes a trace when the block ends well."""
        self.require_current()
        self.traces.mkdir(parents=True, exist_ok=True)
        name = f"step-{step:06d}-rank-{rank:05d}.json.gz"
        draft = self.traces / f".{name}"  # keeps the end of the name, by which the profiler compresses
        try:
            yield draft
            draft.replace(self.traces / name)
        finally:
            draft.unlink(missing_ok=True)

    def write_timeline(self, timeline: StageTimeline) -> None:
        """Write a stage's part. A disk that takes none is said in the log, because a timeline is no result."""
        self.require_current()
        path = self.timeline / f"stage-{timeline.stage:05d}.json"
        try:
            write_atomically(path, timeline.model_dump_json(), durable=False)
        except OSError as error:
            with contextlib.suppress(OSError):
                print(f"{path} cannot be written ({error.strerror})", flush=True)

    def read_timeline(self) -> list[StageTimeline]:
        """The stages of the recorded step, first to last; empty where they are not all there, or not of one step."""
        read = [self.read(StageTimeline, path) for path in sorted(self.timeline.glob("stage-*.json"))]
        stages = [stage for stage in read if stage is not None]
        of_one_step = len({(stage.step, stage.num_stages) for stage in stages}) == 1
        complete = of_one_step and [stage.stage for stage in stages] == list(range(stages[0].num_stages))
        return stages if complete else []

    def write_measurement(self, measurement: Measurement) -> None:
        self.require_current()
        write_atomically(self.measurement, measurement.model_dump_json(indent=1))

    def keep_room(self) -> None:
        """Take the room that `write_result` will need, before the disk fills up."""
        for path in (self.metrics, self.measurement):
            keep_room(path)

    def write_failure(self, failure: RankFailure) -> None:
        """Write it; where the disk is full, in the room of the measurement that will not come now."""
        try:
            super().write_failure(failure)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            self._give_up_room()
            super().write_failure(failure)

    def finish_metrics(self) -> None:
        """Add the lines that a full disk has refused, as soon as there is room; after a while they are given up."""
        room_of(self.metrics).unlink(missing_ok=True)
        if self._unwritten:
            with contextlib.suppress(OSError):
                when_not_full(self._append_unwritten, self.metrics)

    def write_result(self, measurement: Measurement) -> None:
        """Write what the job itself found, in the room that was kept for it, or as soon as there is some.

        It is printed before it waits, for `result_in`. Steps for which there is no room come after it.

        Raises:
            OSError: it cannot be written, or the disk stayed full.
        """
        room_of(self.metrics).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._append_unwritten()
        self.require_current()
        shown = f"{RESULT}{measurement.model_dump_json()}"
        write_in_room(self.measurement, measurement.model_dump_json(indent=1), shown)
        self.finish_metrics()

    def write_verdict(self, measurement: Measurement) -> None:
        """Write an observer's conclusion on a silent trial. The trial's own word, should it come after all, stays.

        Nobody waits for the disk, as there may be thousands: after a power failure the same is concluded again, or the
        trial runs again, where an empty file is left. What a job itself writes is waited for.
        """
        with replacing(self.measurement, keep_existing=True, durable=False) as file:
            file.write(measurement.model_dump_json(indent=1).encode())
        self._give_up_room()

    def _give_up_room(self) -> None:
        for path in (self.metrics, self.measurement):
            room_of(path).unlink(missing_ok=True)

    def read_measurement(self) -> Measurement | None:
        """The outcome of the trial; None when it has not ended, or when its file was damaged and has been put aside."""
        if measurement := self.read(Measurement, self.measurement):
            share_given_fields(measurement, measurement.performance, measurement.environment)
        return measurement


def result_in(output: Path, fingerprint: str) -> Measurement | None:
    """The last result of an experiment that a job has printed because its disk was full; None where there is none."""
    try:
        with output.open("rb") as lines:
            printed = [line.removeprefix(RESULT.encode()) for line in lines if line.startswith(RESULT.encode())]
    except OSError:
        return None
    results = (_parse(Measurement, line) for line in reversed(printed))
    return next((result for result in results if result and result.fingerprint == fingerprint), None)


def steps_of(lines: bytes) -> Iterator[StepMetrics]:
    parsed = (_parse(StepMetrics, line) for line in lines.decode(errors="replace").splitlines())
    return (metrics for metrics in parsed if metrics)


def _parse(model: type[Model], text: str | bytes) -> Model | None:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


class Attempt(NamedTuple):
    """One run of a trial. A later one compares as the larger.

    Attributes:
        number: which submission of the trial it is, from 1. A job's id would not do, as Slurm may give it out again.
        restarts: how often Slurm has started this job again.
    """

    number: int
    restarts: int

    def __str__(self) -> str:
        return f"{self.number}.{self.restarts}"


class AttemptOver(Exception):
    """A later attempt works in the folder, so that this process may write nothing more."""


def last_attempt(claim: Path) -> Attempt | None:
    """The attempt that a file names; None where there is no such file, or nothing to be read in it."""
    try:
        number, _, restarts = claim.read_text().strip().partition(".")
        return Attempt(int(number), int(restarts))
    except (OSError, ValueError):
        return None
