"""A trial is one point of a sweep: an experiment with its estimate, or the reason why it cannot exist.

In the record a trial names its experiment and its estimate by their numbers in a list of parts, an experiment there
its groups, and an estimate its stages, so that ten thousand trials take as much as what sets them apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from conf.errors import UsageError
from conf.plan.experiment import Experiment
from conf.private_files import unreadable
from conf.types.schema import Frozen, Value, share_given_fields
from conf.types.sites import TrackingSpec
from conf.types.sweep_spec import RATE, Objective, SweepSpec, is_of_time
from costs import Estimate
from sweeps.labels import Labels
from train_core.trial.atomic import write_atomically
from train_core.trial.folder import JobFolder, TrialFolder


def json_text(content: object) -> str:
    """JSON in one line; a loss that diverged stays NaN."""
    return to_json(content, inf_nan_mode="constants").decode()


class PartWriter:
    """Gives different parts numbers, in the order in which they come. What is one object is looked at once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._of_objects: dict[tuple[str, int], int] = {}

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)

    def experiment(self, experiment: Experiment) -> int:
        return self._number_of({name: self._group(name, experiment) for name in Experiment.model_fields})

    def estimate(self, estimate: Estimate) -> int:
        key = ("", id(estimate))
        if key not in self._of_objects:
            fields = from_json(estimate.model_dump_json())
            fields["stages"] = [self._number_of(stage) for stage in fields["stages"]]
            self._of_objects[key] = self._number_of(fields)
        return self._of_objects[key]

    def _group(self, name: str, experiment: Experiment) -> int:
        key = (name, id(getattr(experiment, name)))
        if key not in self._of_objects:
            self._of_objects[key] = self._number_of(from_json(experiment.model_dump_json(include={name}))[name])
        return self._of_objects[key]

    def _number_of(self, content: object) -> int:
        return self._numbers.setdefault(json_text(content), len(self._numbers))


REQUIRED_GROUPS = {name for name, field in Experiment.model_fields.items() if field.is_required()}


class PartReader:
    """Makes each part once, however many trials name it.

    Anything else raises a ValueError, LookupError, TypeError or AttributeError.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._made: dict[tuple[str, int], Any] = {}

    def experiment(self, number: int) -> Experiment:
        if ("experiment", number) not in self._made:
            fields = {name: self._group(name, part) for name, part in self._parts[number].items()}
            if missing := REQUIRED_GROUPS - fields.keys():
                raise LookupError(f"an experiment lacks {', '.join(sorted(missing))}")
            # That its groups go together was checked before it was written, and what was measured is read anyway.
            self._made["experiment", number] = experiment = Experiment.model_construct(**fields)
            share_given_fields(experiment)
        return self._made["experiment", number]

    def estimate(self, number: int) -> Estimate:
        if ("estimate", number) not in self._made:
            content = self._parts[number]
            stages = [self._parts[stage] for stage in content["stages"]]
            self._made["estimate", number] = Estimate.model_validate_json(json_text(content | {"stages": stages}))
        return self._made["estimate", number]

    def _group(self, name: str, number: int) -> Any:
        """One group of an experiment, such as its model."""
        if (name, number) not in self._made:
            self._made[name, number] = made = _adapter(name).validate_json(json_text(self._parts[number]))
            if isinstance(made, BaseModel):
                share_given_fields(made)
        return self._made[name, number]


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """Return the reader of a group of an experiment; a name that no group has raises a KeyError."""
    field = Experiment.model_fields[name]
    group: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return TypeAdapter(group)


RECORD = "sweep.json"
LISTS, PARTS = ("plan", "trials"), "parts"
"""The lists of trials in a record, and in its text that of what they share."""

WHOLE = "report"
"""The name of the report on all points of a sweep."""
FEWEST_DIGITS = 6
"""Of a fingerprint in the name of a trial."""


class Trial(Frozen):
    """One point of a sweep.

    Attributes:
        trial_id: its folder's name and its row in every table; unique in the sweep.
        experiment: None when the combination cannot exist.
        estimate: None when the combination cannot exist.
        infeasible_reason: why it cannot exist or does not fit; None when it can run.
        is_baseline: scaling efficiency is stated against it.
        chosen_because: why the planner took it; None where the sweep's file lists it.
        expected_gain: by which share of the best so far a search expected it to be better; None where it did not say.
        repeat: 0 for the first measurement of the point, 1 for the next: the same experiment in a folder of its own.
        asked_by: overrides of the command that asked for it first, as they were typed.
        role: what the last command wants of it. `asked`: it asked for it. `observed`: an earlier command did, and it is
            a point of the present configuration too, so that a search starts from it. `kept`: an earlier command did,
            with another configuration. Both latter are shown and never run again.
    """

    trial_id: str
    point: dict[str, Value]
    experiment: Experiment | None = None
    estimate: Estimate | None = None
    infeasible_reason: str | None = None
    selected: bool = False
    is_baseline: bool = False
    chosen_because: str | None = None
    expected_gain: float | None = None
    repeat: Annotated[int, Field(ge=0)] = 0
    asked_by: str = ""
    role: Literal["asked", "observed", "kept"] = "asked"
    stage: str = ""
    after: str = ""

    @property
    def planned(self) -> Experiment:
        """The experiment of a trial that can exist."""
        assert self.experiment is not None
        return self.experiment

    @property
    def predicted(self) -> Estimate:
        """The estimate of a trial that can exist."""
        assert self.estimate is not None
        return self.estimate

    @property
    def mark(self) -> str:
        """Equal for all measurements of the same experiment. Ids are for people, and may be cut short."""
        return self.experiment.fingerprint if self.experiment else self.trial_id

    @property
    def identity(self) -> tuple[str, int]:
        """Equal for the same measurement of the same experiment."""
        return self.mark, self.repeat


def named_apart(trials: Iterable[Trial], taken: Iterable[str] = ()) -> Iterator[Trial]:
    """The first measurements of different experiments, each with a name that neither another nor `taken` has.

    A name ends with some digits of the fingerprint; where two experiments agree in these, the later one takes more.
    """
    known = set(taken)
    for trial in trials:
        further = trial.experiment.fingerprint[FEWEST_DIGITS:] if trial.experiment else ""
        names = (trial.trial_id + further[:count] for count in range(len(further) + 1))
        name = next((name for name in names if name not in known), trial.trial_id)
        known.add(name)
        yield trial if name == trial.trial_id else trial.model_copy(update={"trial_id": name})


def repeat_id(first: str, repeat: int) -> str:
    """The id of a further measurement of the trial that was the first of its point."""
    return f"{first}-r{repeat + 1}" if repeat else first


JOB_GROUPS = frozenset({"sweep", "slurm", "tracking", "output_dir", "budget", "controller", "launcher", "notify"})
"""Overrides in these groups name the sweep or say how its jobs are requested. They do not change what is measured."""


class SweepRecord(Frozen):
    """The content of `sweep.json`: all that is known of a sweep before it runs, whatever commands asked for it.

    Attributes:
        mode: `cluster`: the trials are the full-size points; `proxy`: the trials are the stand-in's, measured here, and
            `plan` holds the full-size points, which are predicted only.
        overrides: those of the last command, but for `JOB_GROUPS`.
        objective: what the last command sought, by which points are ranked.
        trials: the points that this sweep measures or marks infeasible; those of earlier commands come last.
    """

    name: str
    mode: Literal["cluster", "proxy"]
    spec: SweepSpec
    tracking: TrackingSpec
    overrides: Annotated[tuple[str, ...], Field(strict=False)] = ()
    objective: Annotated[tuple[Objective, ...], Field(strict=False)] = RATE
    git_sha: str
    created: float
    plan: Annotated[tuple[Trial, ...], Field(strict=False)]
    trials: Annotated[tuple[Trial, ...], Field(strict=False)]

    @cached_property
    def labels(self) -> Labels:
        """The names of the trials, each by what sets it apart from the others."""
        return Labels([(trial.point, trial.experiment) for trial in self.trials if not trial.stage])

    @cached_property
    def plan_labels(self) -> Labels:
        """The same of the full-size points."""
        return Labels([(trial.point, trial.experiment) for trial in self.plan])

    @property
    def seeks_rate(self) -> bool:
        """True if the sweep seeks the fastest plan, as most do."""
        return self.objective == RATE

    @property
    def shows_rates(self) -> bool:
        """False of programs that know nothing of the model, where no time is sought: its FLOPs are not theirs."""
        programs = (trial.experiment.trainer for trial in (*self.trials, *self.plan) if trial.experiment)
        return any(map(is_of_time, self.objective)) or any(program.knows_model for program in programs)

    def label_of(self, trial: Trial) -> str:
        """The label of a trial; of a later stage, that of its sweep's own trial and then the stage."""
        point = trial
        while before := self._by_id.get(point.after):
            point = before
        label = self.labels.of(point.point, point.experiment)
        return f"{label} > {trial.stage}" if trial.stage else label

    @cached_property
    def _by_id(self) -> dict[str, Trial]:
        return {trial.trial_id: trial for trial in self.trials}

    def plan_label_of(self, trial: Trial) -> str:
        return self.plan_labels.of(trial.point, trial.experiment)


def text_of(record: SweepRecord) -> str:
    """The record as JSON, with a line for each trial and for each part that trials share; see `PartWriter`."""
    parts, lists = PartWriter(), dict[str, list[str]]()
    for name in LISTS:
        trials: tuple[Trial, ...] = getattr(record, name)
        lists[name] = [json_text(_without_parts(trial, parts)) for trial in trials]
    lists[PARTS] = parts.texts
    head = record.model_dump_json(exclude=set(LISTS), indent=1).removesuffix("\n}")
    written = (f' "{name}": [\n  ' + ",\n  ".join(texts) + "\n ]" for name, texts in lists.items())
    return ",\n".join((head, *written)) + "\n}"


def _without_parts(trial: Trial, parts: PartWriter) -> dict[str, Any]:
    """The trial as JSON values, with numbers in the place of its experiment and its estimate."""
    content: dict[str, Any] = from_json(
        trial.model_dump_json(exclude={"experiment", "estimate"}, exclude_defaults=True)
    )
    experiment = None if trial.experiment is None else parts.experiment(trial.experiment)
    estimate = None if trial.estimate is None else parts.estimate(trial.estimate)
    return content | {"experiment": experiment, "estimate": estimate}


def record_of(text: str) -> SweepRecord:
    """The record that a text says. An incomplete record raises as `PartReader` does."""
    content = from_json(text)
    parts = PartReader(content.pop(PARTS))
    lists = {name: tuple(_with_parts(each, parts) for each in content[name]) for name in LISTS}
    head = SweepRecord.model_validate_json(json_text(content | dict.fromkeys(LISTS, ())))
    return head.model_copy(update=lists)


def _with_parts(content: dict[str, Any], parts: PartReader) -> Trial:
    experiment, estimate = content.pop("experiment"), content.pop("estimate")
    made = {
        "experiment": None if experiment is None else parts.experiment(experiment),
        "estimate": None if estimate is None else parts.estimate(estimate),
    }
    trial = Trial.model_validate(content)
    share_given_fields(trial)
    trial.__dict__.update(made)  # pydantic would check them once more, in the most part of the time that this takes
    return trial


class SweepFolder:
    """One sweep on disk.

    sweep.json      the `SweepRecord`
    journal.jsonl   what was done with it since: which trials were asked for later, what was ordered and what was spent
    private.json    the overrides of the command whose values the journal does not keep
    sweep.lock      held (flock) by the one process that plans, submits or watches
    trials/ID/      one `TrialFolder` for every trial that was submitted
    code/           the code as it was at submission, `DIGEST.zip`, from which jobs import it
    controller/     the `JobFolder` of the small Slurm job that goes on with the sweep, if one does
    allocation/     that of the job in which trials run as steps, if they do
    provenance/     from where each command was given: commit, uncommitted changes, versions, modules, configuration
    submitit/       what submitit hands to Slurm's jobs, and their output
    notified.json   what the webhook was told last
    report.md, report.csv, report.html; those of a part of the sweep bear its values: report-micro_batch_size=1.html
    tracking_id     names this sweep in MLflow, wherever the folder is moved, and says where it was; a copy gets another
    tensorboard/ID/ event files of a trial, where `tracking.also` asks for them; wandb/ likewise its offline runs
    reported.json   what the last report said, and of which files; of a part, report-KEY=VALUE.json
    imported.json   of which files the last import into MLflow was made, so that one with nothing new reads none
    ../tokens/      tokens of all sweeps beside each other, so that those over the same text share them
    """

    def __init__(self, path: Path | str, report_name: str = WHOLE) -> None:
        self.path, self._report_name = Path(path), report_name
        self.reports_a_part = report_name != WHOLE
        self.record = self.path / RECORD
        self.journal = self.path / "journal.jsonl"
        self.private = self.path / "private.json"
        self.lock = self.path / "sweep.lock"
        self.trials = self.path / "trials"
        self.code = self.path / "code"
        self.submitit = self.path / "submitit"
        self.controller = JobFolder(self.path / "controller")
        self.allocation = JobFolder(self.path / "allocation")
        self.tracking_id = self.path / "tracking_id"
        self.imported = self.path / "imported.json"
        self.tokens = self.path.absolute().parent / "tokens"

    @classmethod
    def started_in(cls, output_dir: Path, name: str) -> list[SweepFolder]:
        """The folders in `output_dir` whose name matches, and that hold a sweep or may not be looked into.

        Raises UsageError where `output_dir` may not be read.
        """
        try:
            names = os.listdir(output_dir)  # noqa: PTH208 (a Path for each name takes long)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            raise unreadable(output_dir, error) from None
        return [
            cls(output_dir / each) for each in names if fnmatchcase(each, name) and _may_hold_sweep(output_dir / each)
        ]

    @classmethod
    def planned_last(cls, output_dir: Path, name: str, place: str = "*") -> SweepFolder | None:
        """The folder of the sweep of that name, at that place, which was planned last; None where there is none.

        Copies that were given another name come last: no command for the sweep writes them. Raises UsageError where its
        record cannot be read, or none can whose folder may be that of the sweep.
        """
        started = cls.started_in(output_dir, f"{name}-{place}")
        # A record is written when its sweep is planned, so that the youngest is that of the last command.
        youngest_first = sorted(started, key=cls.time_of_plan, reverse=True)
        renamed: SweepFolder | None = None
        unread: UsageError | None = None
        for folder in youngest_first:
            try:
                record = folder.read_record()
                if record.name == name and folder.is_own_of(record):
                    return folder
                if record.name == name:
                    renamed = renamed or folder
            except UsageError as error:
                # The folder of a sweep with a longer name, such as lr-fine beside lr, matches too.
                if "-" not in folder.path.name.removeprefix(f"{name}-"):
                    raise
                unread = unread or error
        if renamed is None and unread is not None:
            raise unread
        return renamed

    def time_of_plan(self) -> float:
        return change_time(self.record)

    def is_own_of(self, record: SweepRecord) -> bool:
        """True if commands for the sweep work in a folder of this name, and not in one that was renamed or copied."""
        clusters = {trial.experiment.cluster.name for trial in record.trials if trial.experiment is not None}
        places = {"proxy"} if record.mode == "proxy" else clusters
        return self.path.name in {f"{record.name}-{place}" for place in places}

    def trial(self, trial_id: str) -> TrialFolder:
        return TrialFolder(self.trials / trial_id)

    @property
    def reported(self) -> Path:
        return self.path / (f"{self._report_name}.json" if self.reports_a_part else "reported.json")

    def report(self, suffix: Literal["md", "csv", "html"]) -> Path:
        return self.path / f"{self._report_name}.{suffix}"

    def write_record(self, record: SweepRecord) -> None:
        write_atomically(self.record, text_of(record))

    def read_record(self) -> SweepRecord:
        """The record of the sweep, from its file.

        Raises UsageError where the file is damaged or cannot be read, or was written by another version.
        """
        try:
            seen = sight(self.record)
            return _record_in(self.record, seen, 0 if is_sharp(seen) else time.monotonic_ns())
        except PermissionError as error:
            raise unreadable(self.record, error) from None
        except OSError as error:
            problem = f"{self.record} cannot be read ({error.strerror})"
            raise UsageError(problem, "Make it readable, or move it away and run the sweep again.") from None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            remedy = "Run the sweep again: it writes this file anew, with its own points; no measurement is lost."
            raise UsageError(f"{self.record} cannot be read ({_where(error)})", remedy) from None


@lru_cache(maxsize=1)
def _record_in(path: Path, seen: tuple[int, ...], look: int) -> SweepRecord:
    """The record in a file, taken apart once for all who see the same file; there may be thousands of trials in it."""
    return record_of(path.read_text(errors="replace"))


TICK_NS = 2_000_000_000
"""The coarsest clock of a file system that is still in use (FAT's). Two changes within one tick have the same time."""


def sight(path: str | Path) -> tuple[int, ...]:
    """Return a file's times of change (content and inode), size and inode number; empty if it is not there."""
    try:
        seen = os.stat(path)  # noqa: PTH116 (a Path for each file takes longer than the file system)
    except OSError:
        return ()
    return seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino


def is_sharp(seen: tuple[int, ...]) -> bool:
    """True if a change from now on gives the file that was seen so another time."""
    return max(seen[:2], default=0) + TICK_NS <= time.time_ns()


def change_time(path: Path) -> float:
    """When a file was last written, in the file system's time; 0.0 where that may not be seen."""
    return max(sight(path)[:1], default=0) / 1e9


def _may_hold_sweep(folder: Path) -> bool:
    """True if a sweep was started in the folder; also if that may not be seen, and it is called as a sweep's is."""
    try:
        return (folder / RECORD).exists()
    except PermissionError:
        return "-" in folder.name


def _where(error: Exception) -> str:
    """Say where a record is damaged, as far as that is known."""
    place = ".".join(str(part) for part in error.errors()[0]["loc"]) if isinstance(error, ValidationError) else ""
    return f"at {place}" if place else "at its start" if isinstance(error, ValueError) else "its parts do not fit"
