"""A command that names values of what its sweep varies measures only those points; the sweep stays what it is.

So `trisweep sweep 175b batch.micro_batch_size=1` takes part of the sweep that `trisweep sweep 175b` takes whole: both
share the record and every measurement, and the part has a report of its own. Where the named values make other points
than the sweep's own, such as a batch that its file does not list, the command is a sweep of its own, as any change of
the configuration is; what was asked for before stays with it (`sweeps.later_command.union`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conf.load import Composition, compose
from conf.overrides import Overrides, written
from conf.schema import Value
from conf.sweep_spec import PointSet
from conf.tree import value_at
from sweeps.points.plan import part_of, plan_sweep
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord, Trial


@dataclass(frozen=True)
class Restriction:
    """The part of a sweep that a command names.

    Attributes:
        whole: the configuration of the whole sweep.
        whole_record: of the whole sweep, as a plan makes it.
        record: of the part alone, as a plan makes it.
        values: what the command names, by key.
    """

    whole: Composition
    whole_record: SweepRecord
    record: SweepRecord
    values: dict[str, Value]

    @property
    def name(self) -> str:
        """Safe in the name of a file."""
        parts = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in self.values.items()]
        return "-".join(parts).replace("/", "_")

    def holds(self, trial: Trial) -> bool:
        """True if a trial belongs to the part; a further measurement does if its point does."""
        marks = {each.experiment.fingerprint for each in self.record.trials if each.experiment and each.selected}
        return trial.experiment is not None and trial.experiment.fingerprint in marks

    def complete_record(self) -> SweepRecord:
        """The whole sweep's record, in which the points of the part are to be measured, also beyond `max_trials`."""
        trials = [
            trial.model_copy(update={"selected": trial.selected or self.holds(trial)})
            for trial in self.whole_record.trials
        ]
        return self.whole_record.model_copy(update={"trials": tuple(trials)})

    def part(self, sweep: Sweep) -> Sweep:
        """The sweep as if it had no other points, with a name of its own for its report."""
        part = _identities(self.record.trials)
        trials = [trial for trial in sweep.record.trials if trial.identity in part or self.holds(trial)]
        named = tuple(f"{key}={written(value)}" for key, value in self.values.items())
        changed = {"plan": self.record.plan, "trials": tuple(trials), "overrides": (*sweep.record.overrides, *named)}
        record = sweep.record.model_copy(update=changed)
        return Sweep(SweepFolder(sweep.folder.path, report_name=f"report-{self.name}"), record)


def restriction_of(asked: Composition, *, proxy: bool, git_sha: str = "") -> Restriction | None:
    """The part that a command names; None where it takes the whole sweep, or makes other points.

    Raises:
        ConfigError: the configuration is wrong.
        UsageError: no sweep was named, or `proxy` was asked of a sweep that has none.
    """
    spec = asked.settings.sweep
    if spec is None or asked.settings.search.kind != "grid":
        return None  # a search that chooses its points is narrowed by what is pinned
    points: PointSet = spec.proxy if proxy and spec.proxy else spec
    values = _named_values(asked, {key for key, _ in points.listed_values()}, part_of(asked, spec, proxy=proxy).pinned)
    if not values:
        return None
    whole = compose(Overrides(tuple(override for override in asked.overrides if override.key not in values)))
    part, all_of_it = (plan_sweep(each, proxy=proxy, git_sha=git_sha) for each in (asked, whole))
    is_part = _identities(part.trials) <= _identities(all_of_it.trials)
    return Restriction(whole, all_of_it, part, values) if is_part else None


def _named_values(asked: Composition, varied: set[str], pinned: dict[str, Value]) -> dict[str, Value]:
    return {key: value_at(asked.tree, key) for key in asked.overrides.pinned() if key in varied and key in pinned}


def _identities(trials: Sequence[Trial]) -> set[tuple[str, int]]:
    return {trial.identity for trial in trials}
