"""A sweep: the folder that it is in, the record of what it measures, and the stages that follow its trials.

A `Glance` is a cheap look at the folder: whether a file that decides how a trial stands may have changed since another
look. It opens nothing; what the files mean, `sweeps.reading` alone says, which also names them.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from conf.grouped import grouped
from conf.types.stage_spec import TRAIN, StageSpec, earlier_stages
from sweeps.folder.journal import History
from sweeps.folder.submission import keep_attempt
from sweeps.reading import DECIDING, Reading, TrialReading
from sweeps.trial import TICK_NS, SweepFolder, SweepRecord, Trial, change_time, sight
from train_core.process.long_lived import long_lived
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Outcome

AnyReading = TypeVar("AnyReading", bound=Reading)


def points_of(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The trials of the sweep's points, which are compared with each other. No later stage is."""
    return [each for each in readings if not each.trial.stage]


def points_of_configuration(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The points of the present configuration that were tried or are to be, whichever command asked for them."""
    return [each for each in points_of(readings) if each.trial.role != "kept" and each.outcome is not None]


def first_runs(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The first measurement of each of them at each of its seeds, which is all that a search learns from."""
    return [each for each in points_of_configuration(readings) if not each.trial.repeat]


def in_chains(readings: Sequence[AnyReading]) -> list[AnyReading]:
    """The readings, each later stage after the trial that it follows."""
    followers: dict[str, list[AnyReading]] = {}
    known = {each.name for each in readings}
    for each in readings:
        after = each.trial.after if isinstance(each, TrialReading) else ""
        followers.setdefault(after if after in known else "", []).append(each)
    ordered, waiting = list[AnyReading](), followers.pop("", [])[::-1]
    while waiting:
        ordered.append(waiting.pop())
        waiting += followers.pop(ordered[-1].name, [])[::-1]
    return ordered


def chain_of(point: TrialReading, readings: Mapping[str, Sequence[TrialReading]]) -> dict[str, TrialReading]:
    """The trials that followed a trial, by stage, out of the later stages by predecessor."""
    found, waiting = dict[str, TrialReading](), [point.name]
    while waiting:
        following = dict[str, TrialReading]()
        for each in readings.get(waiting.pop(), ()):
            if each.trial.role != "kept" or each.trial.stage not in following:
                following[each.trial.stage] = each
        # What followed a stage that was changed since says nothing of the trial that took its place.
        found |= following
        waiting += [each.name for each in following.values()]
    return found


def by_predecessor(readings: Sequence[TrialReading]) -> dict[str, list[TrialReading]]:
    """The later stages by the trial that each comes directly after."""
    return grouped((each for each in readings if each.trial.stage), lambda each: each.trial.after)


def with_figures(readings: Sequence[TrialReading], stages: Mapping[str, StageSpec]) -> list[TrialReading]:
    """The readings, in which each trial knows what later stages measured of it."""
    later = by_predecessor(readings)
    if not stages:
        return list(readings)
    chains = {each.name: chain_of(each, later) for each in points_of(readings)}
    return [
        each
        if each.name not in chains
        else replace(
            each,
            figures=_metrics(chains[each.name]),
            awaits_figures=_is_open({TRAIN: each, **chains[each.name]}, stages),
        )
        for each in readings
    ]


def _is_open(chain: Mapping[str, TrialReading], stages: Mapping[str, StageSpec]) -> bool:
    """True if a stage with figures is still to begin or to end, and nothing that it needs has failed."""
    for name, stage in stages.items():
        needed = [name, *earlier_stages(name, stages)]
        outcomes = [chain[each].outcome if each in chain else None for each in needed]
        if stage.metrics is None or stage.best is not None or outcomes[0] is Outcome.COMPLETED:
            continue
        if not any(outcome and outcome.is_final and outcome is not Outcome.COMPLETED for outcome in outcomes):
            return True
    return False


def chain_metrics(readings: Sequence[TrialReading]) -> dict[str, dict[str, float]]:
    """The measurements of the programs of later stages, as `STAGE.FIGURE`, by the id of the sweep's own trial."""
    later = by_predecessor(readings)
    if not later:
        return {}
    return {each.name: _metrics(chain_of(each, later)) for each in points_of(readings)}


def _metrics(chain: Mapping[str, TrialReading]) -> dict[str, float]:
    return {f"{stage}.{name}": value for stage, each in chain.items() for name, value in each.metrics.items()}


class Sweep(NamedTuple):
    """One sweep: its folder and its record. Trials are read from the disk each time they are asked for.

    It is cancelled from when a person cancels it until its command is given again.
    """

    folder: SweepFolder
    record: SweepRecord
    is_cancelled: bool = False

    @classmethod
    def stored_in(cls, folder: SweepFolder) -> Sweep:
        """Read the sweep, with the trials that were asked for since it was planned.

        Raises UsageError where its record is damaged, or was written by another version.
        """
        history = History.kept_in(folder)
        with long_lived():
            sweep = cls(folder, history.complete_record(folder.read_record()), history.is_cancelled)
        gc.freeze()  # nor does the collector look at the record later
        return sweep

    @property
    def runnable(self) -> list[Trial]:
        """The trials that were chosen and can exist."""
        return [trial for trial in self.record.trials if trial.selected and trial.infeasible_reason is None]

    def folder_of(self, trial: Trial) -> TrialFolder:
        return self.folder.trial(trial.trial_id)

    def read(self) -> list[TrialReading]:
        """Return the state of every trial, in the order of the record."""
        with long_lived():
            readings = [self.read_trial(trial) for trial in self.record.trials]
            for reading in readings:
                _ = reading.measurement  # read now, because everybody asks for it
            return with_figures(_named_by_code(readings), self.record.spec.stages)

    def read_trial(self, trial: Trial) -> TrialReading:
        return TrialReading(
            folder=self.folder_of(trial),
            experiment=trial.experiment,
            trial=trial,
            record=self.record,
            is_of_cancelled_sweep=self.is_cancelled,
        )

    def prepare(self, trial: Trial) -> TrialFolder:
        """Make the trial's folder ready for a new attempt: write `trial.json`, and forget what an earlier one left.

        What was measured is never forgotten: whoever wants it measured again asks for a repeat, in a folder of its own.
        """
        experiment = trial.planned.model_dump(mode="json")
        # The job does not know the sweep it belongs to, so it is told where the tokens are that all trials share.
        experiment["data"]["cache_dir"] = experiment["data"]["cache_dir"] or str(self.folder.tokens)
        folder = self.folder_of(trial)
        if folder.path.exists():  # a new folder holds nothing to forget, and there may be thousands
            before = self.read_trial(trial)
            assert before.performance is None, f"{trial.trial_id} is measured already"
            for ended in before.ended_attempts[-1:]:
                keep_attempt(folder, ended)
            folder.clear_results(keeps_steps=not trial.planned.trainer.is_own)
            folder.submission.unlink(missing_ok=True)  # else a status in between would judge by the old job
        told = {"trial_id": trial.trial_id, "sweep": self.record.name, "point": trial.point}
        folder.write_trial({"experiment": experiment, **told, "objective": list(self.record.objective)})
        return folder


def _named_by_code(readings: list[TrialReading]) -> list[TrialReading]:
    """Add the code to the labels of older measurements, of points that several versions of the trainer measured."""
    codes: dict[str, dict[str, float]] = {}
    for each in readings:
        if each.code and each.measurement:
            known = codes.setdefault(each.trial.mark, {})
            known[each.code] = max(each.measurement.started, known.get(each.code, 0.0))
    newest = {point: max(known, key=known.__getitem__) for point, known in codes.items() if len(known) > 1}
    older = {each.name for each in readings if each.code and each.code != newest.get(each.trial.mark, each.code)}
    return [replace(each, code_of_label=each.code[:4]) if each.name in older else each for each in readings]


@dataclass(frozen=True)
class Glance:
    """The names, sizes, times and inodes of a sweep's files at one moment, and when the latest of them was changed."""

    summary: str
    newest_ns: int

    def is_sharp(self, taken_ns: int) -> bool:
        """True if every change after the glance, taken at this time of the file system, shows in another one's summary.

        A file that was changed just before it may be changed again without getting another time.
        """
        return self.newest_ns + TICK_NS <= taken_ns


def glance_at(sweep: Sweep, further: Sequence[str] = ()) -> Glance:
    """Look at a sweep, and at `further` files of its trials, before it is read: a change meanwhile shows in the next.

    The record counts as it was read: a later one has another time of its making, or other trials.
    """
    names = [trial.trial_id for trial in sweep.record.trials]
    sights = list(_sights(sweep, names, (*DECIDING, *further)))
    whole = repr((sweep.record.created, sweep.record.git_sha, names, sights))
    newest = max((max(seen[:2]) for seen in sights if seen), default=0)
    return Glance(hashlib.sha256(whole.encode()).hexdigest(), newest)


def is_settled(reading: TrialReading) -> bool:
    """True if a glance sees all that could change this reading: it waits for no job and no process."""
    left_out = reading.trial.infeasible_reason is not None or not reading.trial.selected
    return reading.measurement is not None or left_out


def _sights(sweep: Sweep, names: Sequence[str], files: Sequence[str]) -> Iterator[tuple[int, ...]]:
    folder = sweep.folder
    for path in (folder.record, folder.journal):
        yield sight(path)
    # Paths are put together as text, because ten thousand folders are looked at.
    trials = os.fspath(folder.trials)
    for name in names:
        for file in files:
            yield sight(f"{trials}/{name}/{file}")


def age_seconds(reading: Reading, now: float) -> float | None:
    """Seconds for which it has waited, or has run; of one that has ended, for which it ran. None before submission.

    Args:
        now: seconds since the epoch.
    """
    if reading.measurement is not None:
        return max(0.0, reading.measurement.ended - reading.measurement.started)
    if reading.submission is None:
        return None
    begun = reading.submission.submitted
    if reading.outcome is Outcome.RUNNING:
        # Slurm may have started the job again, and then a rank takes the folder anew.
        begun = max(begun, change_time(reading.folder.claim))
    return max(0.0, now - begun)
