"""A sweep: the folder that it is in, and the record of what it measures."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import NamedTuple

from sweeps.chains import with_figures
from sweeps.folder.history import History
from sweeps.folder.submission import keep_attempt
from sweeps.reading import TrialReading
from sweeps.trial import SweepFolder, SweepRecord, Trial
from train_core.process.long_lived import long_lived
from train_core.trial_folder import TrialFolder


class Sweep(NamedTuple):
    """One sweep: its folder and its record. Trials are read from the disk each time they are asked for."""

    folder: SweepFolder
    record: SweepRecord

    @classmethod
    def stored_in(cls, folder: SweepFolder) -> Sweep:
        """Read the sweep, with the trials that were asked for since it was planned.

        Raises:
            UsageError: its record is damaged, or was written by another version.
        """
        history = History.kept_in(folder)
        with long_lived():
            sweep = cls(folder, history.complete_record(folder.read_record()))
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
        label = self.record.label_of(trial)
        return TrialReading(folder=self.folder_of(trial), experiment=trial.experiment, trial=trial, label=label)

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
        folder.write_trial(
            {"experiment": experiment, "trial_id": trial.trial_id, "sweep": self.record.name, "point": trial.point}
        )
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
    return [
        replace(each, label=f"{each.label} (code {each.code[:4]})") if each.name in older else each for each in readings
    ]
