"""The adaptive search: the planner's best first, nothing twice, an end with a reason, and it remembers nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.replay.run import ReplayedReading, replayed_reading
from conf.units import GIBIBYTE
from sweeps.memory_odds import LIKELY, MemoryOdds
from sweeps.search.layouts.bayes import Bayes
from sweeps.search.layouts.priced import Priced
from sweeps.search.registry import search_for
from sweeps.search.searcher import Listed
from sweeps.trial import Trial
from tests.composed import composed
from tests.sweeps.search.conftest import SWEEP, Replay
from train_core.trial.measurement import Measurement, Outcome

ODDS = re.compile(r"(\d+)% likely to fit")


def failed(measured: Measurement) -> Measurement:
    return measured.model_copy(update={"outcome": Outcome.FAILED, "cause": "it crashed", "performance": None})


def run_to_the_end(replay: Replay, at_once: int = 1) -> tuple[list[ReplayedReading], str]:
    """All trials and the reason of the end, where trials end in the order in which they began."""
    ended, flying = [replay.ended(replay.baseline)], list[Trial]()
    while True:
        answer = replay.search.ask([*ended, *map(replay.running, flying)], at_once - len(flying))
        flying += [replay.trial(proposal) for proposal in answer.proposals]
        if not flying:
            return ended, answer.finished
        ended.append(replay.ended(flying.pop(0)))


@pytest.fixture(scope="module")
def searched(replay: Replay) -> tuple[list[ReplayedReading], str]:
    """A whole search that asked for one trial after the other."""
    return run_to_the_end(replay)


@pytest.mark.slow
def test_the_sweep_is_planned_with_its_baseline_alone(replay: Replay) -> None:
    assert [trial.is_baseline for trial in replay.record.trials] == [True]
    assert replay.baseline.selected


@pytest.mark.slow
def test_the_best_of_the_planner_is_asked_first(replay: Replay) -> None:
    proposal = replay.search.ask([], 1).proposals[0]
    planned = composed(["sweep=175b", "search=planner"])
    assert isinstance(search_for(planned, replay.record), Listed)
    priced, memory = replay.search.candidates.prices, replay.baseline.planned.cluster.device.memory_bytes
    best = min(priced.step_seconds[priced.peak_bytes <= MemoryOdds.of("trisweep", 1024).room_bytes(memory)])
    estimate = replay.trial(proposal).estimate
    assert estimate is not None
    assert estimate.step_seconds == pytest.approx(best, rel=1e-9)
    assert "predicted the best" in proposal.because
    assert re.search(r"; left out: tp\S+, \d+\.\d% faster, \d\d% likely to fit$", proposal.because)


@pytest.mark.slow
def test_what_it_says_of_a_plan_is_before_or_after_so_many_runs(replay: Replay) -> None:
    first, second = replay.search.ask([], 2).proposals
    assert "; before any of your runs: a step of " in first.because
    assert "left out" not in second.because
    readings = [replay.ended(replay.baseline), replay.ended(replay.trial(first))]
    assert "; after 2 of your runs: a step of " in replay.search.ask(readings, 1).proposals[0].because


@pytest.mark.slow
def test_no_plan_is_asked_that_may_not_fit_while_others_are_likely_to(
    searched: tuple[list[ReplayedReading], str],
) -> None:
    odds = [int(found[1]) for one in searched[0][1:] if (found := ODDS.search(one.trial.chosen_because or ""))]
    assert len(odds) == len(searched[0]) - 1
    assert min(odds) >= 100 * LIKELY


@pytest.mark.slow
def test_where_no_plan_is_likely_to_fit_those_are_asked_that_are_likeliest_to(replay: Replay) -> None:
    search = replay.search
    priced = search.candidates.prices
    tight = replace(priced, memory_bytes=1.01 * np.full(len(priced), priced.peak_bytes.min()))
    proposal = crowded_search(search, tight).ask([], 1).proposals[0]
    estimate = replay.trial(proposal).estimate
    assert estimate is not None
    assert estimate.peak_memory_bytes < 1.05 * priced.peak_bytes.min()
    assert re.search(r", \d+% likely to fit; no plan is 90% likely to fit$", proposal.because)


@pytest.mark.slow
def test_it_can_ask_before_anything_was_measured(replay: Replay) -> None:
    answer = replay.search.ask([], 4)
    assert len({str(proposal.point) for proposal in answer.proposals}) == 4
    assert not answer.finished


@pytest.mark.slow
def test_no_plan_is_asked_twice_and_the_end_says_what_would_come_next(
    replay: Replay, searched: tuple[list[ReplayedReading], str]
) -> None:
    for readings, ending in (searched, run_to_the_end(replay, at_once=3)):
        fingerprints = [reading.experiment.fingerprint for reading in readings if reading.experiment]
        assert len(set(fingerprints)) == len(fingerprints) <= replay.record.spec.max_trials
        assert "search.min_gain" in ending
        assert "next would come tp" in ending


@pytest.mark.slow
def test_what_it_finds_is_better_than_the_baseline(searched: tuple[list[ReplayedReading], str]) -> None:
    readings, _ = searched
    rates = [one.performance.model_flops_per_second_per_device for one in readings if one.performance]
    assert max(rates) > 1.1 * rates[0]


@pytest.mark.thorough  # than test_no_plan_is_asked_twice
@pytest.mark.slow
def test_another_process_that_knows_only_the_trials_asks_for_the_same(
    replay: Replay, searched: tuple[list[ReplayedReading], str]
) -> None:
    readings, _ = searched
    assert Replay().search.ask(readings[:3], 2) == replay.search.ask(readings[:3], 2)


@pytest.mark.slow
def test_trials_in_flight_count_as_if_they_had_ended_as_expected(replay: Replay) -> None:
    first = replay.ended(replay.baseline)
    one = replay.search.ask([first], 1).proposals[0]
    both = replay.search.ask([first], 2).proposals
    other = replay.search.ask([first, replay.running(replay.trial(one))], 1).proposals
    assert both[0] == one
    assert both[1].point == other[0].point != one.point


@pytest.mark.slow
def test_while_trials_run_the_search_waits_instead_of_ending(
    replay: Replay, searched: tuple[list[ReplayedReading], str]
) -> None:
    readings, _ = searched
    last = replay.running(readings[-1].trial)
    answer = replay.search.ask([*readings[:-1], last], 1)
    assert not answer.finished


@pytest.mark.slow
def test_a_failed_trial_is_not_asked_again_and_does_not_end_the_search(replay: Replay) -> None:
    first = replay.ended(replay.baseline)
    proposal = replay.search.ask([first], 1).proposals[0]
    crashed = replay.ended(replay.trial(proposal), failed)
    following = replay.search.ask([first, crashed], 3).proposals
    assert len(following) == 3
    assert proposal.point not in [other.point for other in following]


@pytest.mark.slow
def test_where_every_trial_failed_it_goes_on_with_other_plans(replay: Replay) -> None:
    readings = [replay.ended(replay.baseline, failed)]
    for _ in range(3):
        proposals = replay.search.ask(readings, 1).proposals
        readings.append(replay.ended(replay.trial(proposals[0]), failed))
    labels = [reading.label for reading in readings]
    assert len(set(labels)) == 4


@pytest.mark.slow
def test_it_may_choose_among_the_listed_points_alone() -> None:
    replay = Replay([*SWEEP, "search.space=listed", "search.min_gain=0"])
    proposals = replay.search.ask([replay.ended(replay.baseline)], 8).proposals
    assert all(set(proposal.point) <= _listed_keys(replay) for proposal in proposals)


@pytest.mark.slow
def test_a_plan_of_what_does_not_fit_is_learned_from(replay: Replay) -> None:
    first = replay.ended(replay.baseline)
    proposal = replay.search.ask([first], 1).proposals[0]

    def out_of_memory(measured: Measurement) -> Measurement:
        ended = {"outcome": Outcome.OUT_OF_MEMORY, "over_capacity_bytes": 20.0 * GIBIBYTE, "performance": None}
        return measured.model_copy(update=ended)

    crowded = replay.ended(replay.trial(proposal), out_of_memory)
    tried = replay.trial(replay.search.ask([first, crowded], 1).proposals[0])
    assert tried.estimate is not None
    assert crowded.trial.estimate is not None
    assert tried.estimate.peak_memory_bytes < crowded.trial.estimate.peak_memory_bytes


@pytest.mark.slow
def test_a_trial_that_the_sweep_left_out_does_not_count_as_tried(replay: Replay) -> None:
    unknown = replay.baseline.model_copy(update={"experiment": None, "estimate": None, "infeasible_reason": "cannot"})
    assert replay.search.ask([replayed_reading(unknown, None)], 1).proposals


def _listed_keys(replay: Replay) -> set[str]:
    spec = replay.record.spec
    return {*spec.axes, *(spec.baseline or {}), *(key for point in spec.points for key in point)}


def crowded_search(search: Bayes, priced: Priced) -> Bayes:
    """The search, among plans with these prices."""

    class Crowded:
        prices, trainer = priced, search.candidates.trainer
        point, experiment, row_of = search.candidates.point, search.candidates.experiment, search.candidates.row_of

    return replace(search, candidates=Crowded())
