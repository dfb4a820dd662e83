"""The trials that follow a trial: one for each stage of the sweep that comes directly after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from conf.compose.load import Composition, compose, settings_of
from conf.compose.tree import Tree, has_key, part_at, with_values
from conf.errors import ConfigError, InfeasiblePlan
from conf.overrides import Overrides
from conf.plan.experiment import Experiment
from conf.types.stage_spec import STAGES, TRAIN, StagePlace, StageSpec, following
from costs import IMPLEMENTATIONS, estimate
from sweeps.points.axes import NUM_STEPS
from sweeps.trial import FEWEST_DIGITS, SweepFolder, Trial

OF_EVERY_PROGRAM = ("prefix", "python", "working_dir", "environment")
"""Keys of a sweep's trainer that hold for the programs of its stages too: where these find what they need."""


@dataclass(frozen=True)
class Stages:
    """The later stages of a sweep, over the configuration of its trials.

    Attributes:
        composition: of the trials; None where the sweep has no later stage.
    """

    specs: Mapping[str, StageSpec] = field(default_factory=dict)
    composition: Composition | None = None

    def after(self, trial: Trial, *, best: bool = False) -> list[str]:
        """The stages that come directly after a trial: after the best trials alone, or all others."""
        names = following(self.specs, trial.stage or TRAIN)
        return [name for name in names if (self.specs[name].best is not None) == best]

    def require_sound(self, trial: Trial) -> None:
        """Draft all that follows a trial once, so that a wrong name is found before anything starts.

        Raises ConfigError, which names the stage and its key.
        """
        for name in following(self.specs, trial.stage or TRAIN):
            draft = self.draft(name, trial, SweepFolder("runs"))
            if draft.experiment is None:
                problem, remedy = f"cannot follow {trial.trial_id}: {draft.infeasible_reason}", "Change its overrides."
                raise ConfigError(STAGES, name, problem, remedy)
            self.require_sound(draft)

    def draft(self, name: str, before: Trial, folder: SweepFolder) -> Trial:
        """The trial of a stage in the sweep's folder; one that cannot exist after this trial has its reason."""
        follows = before.planned.stage.follows if before.planned.stage else {}
        place = StagePlace(name=name, follows={**follows, before.stage or TRAIN: before.trial_id})
        drafted = Trial(
            trial_id=f"{place.follows[TRAIN]}-{name}", point=before.point, stage=name, after=before.trial_id
        )
        try:
            return _with_prediction(drafted, self._experiment(place, before, folder))
        except InfeasiblePlan as reason:
            return drafted.model_copy(update={"infeasible_reason": str(reason)})

    def _experiment(self, place: StagePlace, before: Trial, folder: SweepFolder) -> Experiment:
        try:
            tree = with_values(self._trees[place.name], self._values(place, before, folder))
            settings = settings_of(tree | {"sweep": None})
            return settings.experiment(place)
        except InfeasiblePlan:
            raise
        except ConfigError as error:
            raise _of_stage(place.name, error) from None

    def _values(self, place: StagePlace, before: Trial, folder: SweepFolder) -> dict[str, Any]:
        """The values that set the stage apart: the point's unless the stage states its own, and what it begins with."""
        spec, own = self.specs[place.name], Overrides.parse(self.specs[place.name].overrides)
        point: dict[str, Any] = dict(before.point)
        if part_at(self._trees[place.name], "search.tokens") is not None:
            point[NUM_STEPS] = before.planned.training.num_steps
        stated = {"trainer": spec.trainer}
        values = {
            key: value
            for key, value in point.items()
            # An override states the key, or chooses the whole group that it is in.
            if not (has_key(stated, key) or any(f"{key}.".startswith(f"{each.key}.") for each in own))
        }
        if spec.command is not None:  # whatever a point says of its trainer is not said of this program
            values = {key: value for key, value in values.items() if not key.startswith("trainer.")}
        if spec.load is not None:
            values["checkpoint.load"] = str(folder.trial(place.follows[spec.load]).checkpoints.absolute())
        return values

    @cached_property
    def _trees(self) -> dict[str, Tree]:
        """The configuration of each stage, composed once."""
        return {name: self._tree(name, spec) for name, spec in self.specs.items()}

    def _tree(self, name: str, spec: StageSpec) -> Tree:
        assert self.composition is not None
        try:
            tree = compose(self.composition.overrides + Overrides.parse(spec.overrides)).tree
        except ConfigError as error:
            raise _of_stage(name, error) from None
        return with_values(tree, {"trainer": _trainer(name, spec, tree["trainer"])})


def _with_prediction(drafted: Trial, experiment: Experiment) -> Trial:
    """The trial with its experiment, and a prediction where it trains: no cost model knows what else a program does."""
    trainer = experiment.trainer
    predicted = estimate(experiment, IMPLEMENTATIONS[trainer.costs_of]) if trainer.trains else None
    name = f"{drafted.trial_id}-{experiment.fingerprint[:FEWEST_DIGITS]}"
    made = {"trial_id": name, "experiment": experiment, "estimate": predicted, "selected": True}
    return drafted.model_copy(update=made)


def _trainer(name: str, spec: StageSpec, of_sweep: Mapping[str, Any]) -> dict[str, Any]:
    """The stage's program, or the sweep's own trainer with what the stage changes of it."""
    if spec.command is None:
        return _changed_tree(of_sweep, spec.trainer)
    shared = {key: of_sweep[key] for key in OF_EVERY_PROGRAM if key in of_sweep}
    metrics = spec.metrics.model_dump() if spec.metrics else None
    fixed = {"kind": "program", "name": name, "command": list(spec.command), "metrics": metrics}
    return {"start": "once", **shared, **spec.trainer, **fixed}


def _changed_tree(whole: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The whole with what changes in it: mappings such as `flags` key by key, as overrides change them."""
    merged = dict(whole)
    for key, value in changes.items():
        before = merged.get(key)
        goes_deeper = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = _changed_tree(before or {}, value) if goes_deeper else value
    return merged


def _of_stage(name: str, error: ConfigError) -> ConfigError:
    return ConfigError(f"{STAGES}.{name}: {error.key}", error.value, error.problem, error.remedy)
