"""A command that names values of what its sweep varies measures only those points; the sweep stays what it is.

So `trisweep sweep 175b batch.micro_batch_size=1` takes part of the sweep that `trisweep sweep 175b` takes whole: both
share the record and every measurement, and the part has a report of its own. Where the named values make other points
than the sweep's own, such as a batch that its file does not list, the command is a sweep of its own, as any change of
the configuration is; what was asked for before stays with it.

`trisweep sweep smoke search=bayes` plans other points than `trisweep sweep smoke` does. What the earlier command asked
for stays in the record, with its name and its results, and the later one says what it wants of it (`Trial.role`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from conf.compose.load import Composition, compose
from conf.compose.tree import value_at
from conf.errors import ConfigError, UsageError
from conf.overrides import Overrides, value_text
from conf.plan.knobs import LAYOUT_KEYS
from conf.types.schema import Value
from conf.types.sweep_spec import PointSet
from conf.types.trainer_spec import TrainerSpec
from sweeps.points.axes import Point
from sweeps.points.plan import part_of, plan_sweep
from sweeps.search.searcher import Proposal
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, SweepRecord, Trial, named_apart


@dataclass(frozen=True)
class Restriction:
    """The part of a sweep that a command names by the values of some keys; both records are as a plan makes them."""

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
        return trial.experiment is not None and trial.experiment.fingerprint in self._marks

    @cached_property
    def _marks(self) -> set[str]:
        return {each.experiment.fingerprint for each in self.record.trials if each.experiment and each.selected}

    def complete_record(self) -> SweepRecord:
        """The whole sweep's record, in which the points of the part are to be measured, also beyond `max_trials`."""
        trials = [
            trial.model_copy(update={"selected": trial.selected or self.holds(trial)})
            for trial in self.whole_record.trials
        ]
        return self.whole_record.model_copy(update={"trials": tuple(trials)})

    def part(self, sweep: Sweep) -> Sweep:
        """The sweep as if it had no other points, with a name of its own for its report."""
        part, trials = _identities(self.record.trials), list[Trial]()
        kept = {trial.trial_id for trial in sweep.record.trials if trial.identity in part or self.holds(trial)}
        for trial in sweep.record.trials:
            # A later stage comes after the trial that it follows, and belongs to the same part.
            if trial.trial_id in kept or (trial.stage and trial.after in kept):
                kept.add(trial.trial_id)
                trials.append(trial)
        named = tuple(f"{key}={value_text(value)}" for key, value in self.values.items())
        changed = {"plan": self.record.plan, "trials": tuple(trials), "overrides": (*sweep.record.overrides, *named)}
        record = sweep.record.model_copy(update=changed)
        return sweep._replace(folder=SweepFolder(sweep.folder.path, report_name=f"report-{self.name}"), record=record)


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
    named = {key for key, _ in points.listed_values()} & part_of(asked, spec, proxy=proxy).pinned.keys()
    values = {key: value_at(asked.tree, key) for key in asked.overrides.pinned_keys() if key in named}
    if not values:
        return None
    whole = compose(Overrides(tuple(override for override in asked.overrides if override.key not in values)))
    part, all_of_it = (plan_sweep(each, proxy=proxy, git_sha=git_sha) for each in (asked, whole))
    is_part = _identities(part.trials) <= _identities(all_of_it.trials)
    return Restriction(whole, all_of_it, part, values) if is_part else None


def _identities(trials: Sequence[Trial]) -> set[tuple[str, int]]:
    return {trial.identity for trial in trials}


Draft = Callable[[Proposal], Trial]


def union(planned: Sweep, draft: Draft | None, *, asks_later: bool) -> SweepRecord:
    """The record of a new command, with what earlier ones asked for. Whoever calls holds the folder's lock.

    Args:
        planned: with the record of the new command alone.
        draft: makes the trial of a point under the new configuration; None where no search proposes any.
        asks_later: the command's search chooses points one after another, so that it goes on with those that the same
            command chose before.
    """
    by = " ".join(planned.record.overrides)
    stored = _stored_record(planned)
    earlier = {trial.identity: trial for trial in stored.trials} if stored else {}
    asked = list(_with_earlier_names(planned.record.trials, earlier, by))
    known = {trial.identity for trial in asked}
    trainers = list[TrainerSpec]()
    for trial in asked:
        if trial.experiment and not trial.experiment.trainer.is_own and trial.experiment.trainer not in trainers:
            trainers.append(trial.experiment.trainer)
    others = [_read_as_now(trial, trainers) for identity, trial in earlier.items() if identity not in known]
    roles = _Roles({fingerprint for fingerprint, _ in known}, draft, by, asks_later)
    points = [*asked, *(roles.with_role(trial) for trial in others if not trial.stage)]
    trials = [*_with_one_baseline(points, planned.record), *_stages_of(points, others)]
    created = stored.created if stored else planned.record.created
    joined = planned.record.model_copy(update={"trials": tuple(trials), "created": created})
    # From which code the points were planned again says nothing about them.
    is_same = stored is not None and stored == joined.model_copy(update={"git_sha": stored.git_sha})
    return stored if stored is not None and is_same else joined


def _read_as_now(trial: Trial, trainers: Sequence[TrainerSpec]) -> Trial:
    """The trial, whose log is read as the new command says where the program is the same."""
    if not trainers or trial.experiment is None or trial.experiment.trainer in trainers:
        return trial
    was = trial.experiment.trainer
    now = next((each for each in trainers if was.model_copy(update={"log": each.log}) == each), was)
    return trial.model_copy(update={"experiment": trial.experiment.model_copy(update={"trainer": now})})


def _stored_record(planned: Sweep) -> SweepRecord | None:
    """Return the record of earlier commands; None if there were none, or if the file is damaged."""
    if not planned.folder.record.exists():
        return None
    try:
        return Sweep.stored_in(planned.folder).record
    except UsageError:
        if not planned.folder.record.is_file():
            raise  # it could not be written either
        return None


def _with_earlier_names(trials: Iterable[Trial], earlier: dict[tuple[str, int], Trial], by: str) -> Iterator[Trial]:
    """The planned trials; what was asked for before keeps its name, and with it its folder."""
    new = [trial.model_copy(update={"asked_by": by}) for trial in trials if trial.identity not in earlier]
    named = {trial.identity: trial for trial in named_apart(new, (trial.trial_id for trial in earlier.values()))}
    for trial in trials:
        before = earlier.get(trial.identity)
        if before is None:
            yield named[trial.identity]
        else:
            yield trial.model_copy(update={"trial_id": before.trial_id, "asked_by": before.asked_by})


def _stages_of(points: Sequence[Trial], others: Sequence[Trial]) -> Iterator[Trial]:
    """The later stages that the sweep has: they stay asked for as long as the trial that they follow is."""
    asked = {trial.trial_id for trial in points if trial.role == "asked"}
    for trial in others:
        if trial.stage and trial.after in asked and trial.role == "asked":
            asked.add(trial.trial_id)
            yield trial
        elif trial.stage:
            yield trial.model_copy(update={"role": "kept", "selected": False})


CHOOSES_NOTHING = frozenset({"search.max_rounds", "search.max_concurrent_trials", "search.min_gain"})
"""What decides how far a search goes, and not which points it takes."""


def _choosing(by: str) -> dict[str, str | None]:
    """What decides the points of a command, in whatever order it was typed.

    A trial keeps its overrides as one text. A value with blanks comes in pieces, the same ones each time.
    """
    overrides = Overrides.parse(by.split()).entries
    return {
        override.key: override.value
        for override in overrides
        if override.key not in CHOOSES_NOTHING and not override.key.startswith("trainer.log.")
    }


class _Roles:
    """Gives trials that the new command has not planned their role in it."""

    def __init__(self, planned: set[str], draft: Draft | None, by: str, asks_later: bool) -> None:
        self._planned, self._draft, self._asks_later = planned, draft, asks_later
        self._choosing = _choosing(by)

    def with_role(self, trial: Trial) -> Trial:
        is_planned, point = trial.mark in self._planned, self._point_of(trial)
        is_same_command = _choosing(trial.asked_by) == self._choosing
        goes_on = is_same_command and (is_planned or (self._asks_later and point is not None))
        if goes_on:
            return trial.model_copy(update={"role": "asked", "selected": trial.infeasible_reason is None})
        if is_planned or point is not None:
            said = {"role": "observed", "selected": False, "point": point or trial.point}
            return trial.model_copy(update=said)
        return trial.model_copy(update={"role": "kept", "selected": False})

    def _point_of(self, trial: Trial) -> Point | None:
        """The trial as a point of the new configuration; None where it differs in more than its layout."""
        if self._draft is None or trial.experiment is None:
            return None
        try:
            point = {**trial.point, **_stated_layout(trial, self._draft)}
            return point if self._draft(Proposal(point, "")).mark == trial.mark else None
        except ConfigError:  # as where a name in the command, which had one value then, has several now
            return None


def _stated_layout(trial: Trial, draft: Draft) -> Point:
    """Return those knobs of the trial's layout to which the new configuration would give another value."""
    was, drafted = trial.planned.model_dump(mode="json"), draft(Proposal(trial.point, "")).experiment
    now = drafted.model_dump(mode="json") if drafted else {}
    return {key: value_at(was, key) for key in sorted(LAYOUT_KEYS) if value_at(was, key) != value_at(now, key)}


def _with_one_baseline(trials: list[Trial], planned: SweepRecord) -> Iterator[Trial]:
    """The baseline of the new command, where it has one, is the only one; its repeats are the baseline's too."""
    marks = {trial.mark for trial in planned.trials if trial.is_baseline}
    if not marks:
        return iter(trials)
    return (trial.model_copy(update={"is_baseline": trial.mark in marks}) for trial in trials)
