"""What finished trials say of points that are predicted only."""

from __future__ import annotations

import pytest

from results.analysis.own_level import at_own_level
from sweeps.confidence import interval_of
from sweeps.practice import own_level
from sweeps.trial import Trial
from tests.results.conftest import WriteSweep, performance, trial


def moved_by(write_sweep: WriteSweep, slower: float, measured: int, target: Trial) -> Trial:
    """The target after so many trials that took so many times as long as predicted."""
    trials = [trial(f"t{number}", micro_batch_size=2**number) for number in range(3)]
    how = {one.trial_id: performance(256 / (slower * one.predicted.step_seconds)) for one in trials[:measured]}
    return at_own_level(target, write_sweep(trials, how).read())


def test_finished_trials_move_what_is_expected_of_others_and_say_how_many_they_are(write_sweep: WriteSweep) -> None:
    target = trial("far", global_batch_size=16)
    moved = moved_by(write_sweep, 1.5, 2, target)
    factor = moved.predicted.step_seconds / target.predicted.step_seconds
    assert 1.4 < factor < 1.5  # nearly all of it, and pulled towards what runs usually take
    assert moved.predicted.tokens_per_second == pytest.approx(target.predicted.tokens_per_second / factor)
    found = interval_of(moved.planned, "trisweep", moved.predicted)
    assert found.in_words.startswith("After 2 of your runs: ")
    again = moved_by(write_sweep, 1.5, 2, moved)
    assert again.predicted.step_seconds == pytest.approx(moved.predicted.step_seconds), "a level is not counted twice"


def test_what_was_predicted_stays_where_nothing_of_its_cluster_is_finished(write_sweep: WriteSweep) -> None:
    target = trial("far")
    assert moved_by(write_sweep, 1.5, 0, target) is target
    elsewhere = target.planned.cluster.model_copy(update={"name": "elsewhere"})
    other = trial("other", cluster=elsewhere)
    assert moved_by(write_sweep, 1.5, 3, other) is other
    assert own_level(other.planned, "trisweep") is None
