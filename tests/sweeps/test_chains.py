"""Which later stages belong to a trial."""

from __future__ import annotations

from typing import Literal

from sweeps.reading import TrialReading
from sweeps.sweep import by_predecessor, chain_of
from sweeps.trial import Trial
from train_core.trial.folder import TrialFolder


def stage(name: str, after: str, role: Literal["asked", "kept"] = "asked") -> TrialReading:
    trial = Trial(trial_id=name, point={}, stage=name.split("-")[0], after=after, role=role)
    return TrialReading(folder=TrialFolder(name), experiment=None, trial=trial)


def test_what_followed_a_stage_that_was_changed_is_no_stage_of_the_trial() -> None:
    point = TrialReading(folder=TrialFolder("point"), experiment=None, trial=Trial(trial_id="point", point={}))
    before = [stage("infer-old", "point", "kept"), stage("score-old", "infer-old")]
    new = [stage("infer-new", "point"), stage("score-new", "infer-new")]
    for later, expected in ((before, "old"), ([*before, *new], "new"), ([*before, new[0]], "new")):
        found = chain_of(point, by_predecessor([point, *later]))
        assert {each.trial.trial_id.split("-")[1] for each in found.values()} == {expected}
