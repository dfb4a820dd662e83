"""What measured steps let expect of other plans: the prediction where nothing is known, and less doubt with each."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.replay.machine import InventedMachine
from costs.setting import Floats, Integers
from costs.terms import STEP_TERMS
from sweeps.search.layouts.memory_fit import cumulative, expected_improvement
from sweeps.search.layouts.priced import Priced
from sweeps.search.layouts.surrogate import PARTS, Seen, Surrogate
from tests.sweeps.search.conftest import Replay

NOISE = 0.02


@pytest.fixture(scope="module")
def plans(replay: Replay) -> Priced:
    return replay.search.candidates.prices


@pytest.fixture(scope="module")
def true_logs(replay: Replay, plans: Priced) -> Floats:
    space = replay.search.candidates.by_kind[0][0]  # type: ignore[attr-defined]
    return np.log(InventedMachine(3).truth(space.setting, plans.plans).step_seconds)


def seen_of(plans: Priced, logs: Floats, rows: Integers) -> Seen:
    none = np.full((len(rows), len(PARTS)), np.nan)
    return Seen(plans.rows(rows), logs[rows], np.full(len(rows), NOISE), none)


def spread_over(plans: Priced, number: int, draw: int = 1) -> Integers:
    return np.random.default_rng(draw).choice(len(plans), number, replace=False)


def test_without_measurements_the_prediction_is_expected(plans: Priced) -> None:
    nothing = seen_of(plans, np.zeros(len(plans)), np.zeros(0, dtype=int))
    mean, spread = Surrogate.fit(nothing).belief(plans)
    assert np.exp(mean) == pytest.approx(plans.step_seconds)
    assert spread.min() > 0.1


def test_thirty_measurements_make_the_expectation_of_all_other_plans_better(plans: Priced, true_logs: Floats) -> None:
    """Which thirty are drawn moves the error by a third, so that the claim is about several draws."""
    before = np.abs(np.log(plans.step_seconds) - true_logs).mean()
    beliefs = [
        Surrogate.fit(seen_of(plans, true_logs, spread_over(plans, 30, draw))).belief(plans) for draw in range(5)
    ]
    after = np.array([np.abs(mean - true_logs) for mean, _ in beliefs])
    assert after.mean() < 0.4 * before
    # Its own word on how far it is off is neither far too small nor far too large.
    in_spreads = np.array([error / spread for error, (_, spread) in zip(after, beliefs, strict=True)])
    assert 0.5 < np.sqrt(np.mean(in_spreads**2)) < 1.6


def test_plans_that_err_each_in_their_own_way_surprise_it_and_widen_what_it_expects(
    plans: Priced, true_logs: Floats
) -> None:
    """Which twenty are drawn decides whether they show it, so that the claim is about several draws."""
    of_shards = np.random.default_rng(0).normal(0, 0.3, 64)
    logs = true_logs + of_shards[(plans.plans.tensor_parallel_size * 7 + plans.plans.micro_batch_size) % 64]
    draws = [spread_over(plans, 20, draw) for draw in range(5)]
    calm, surprised = ([Surrogate.fit(seen_of(plans, each, rows)) for rows in draws] for each in (true_logs, logs))
    assert not any(each.is_surprised for each in calm)
    assert sum(each.is_surprised for each in surprised) > 3
    widths = [[each.belief(plans)[1].mean() for each in own] for own in (calm, surprised)]
    assert all(wider > 1.5 * own for own, wider in zip(*widths, strict=True))


def test_a_pipeline_size_that_is_slow_in_ways_of_its_own_is_slow_in_plans_unlike_those_measured(plans: Priced) -> None:
    """Its neighbours are not, so that neither a term nor what varies slowly explains it."""
    sizes = plans.plans.pipeline_parallel_size
    slow = np.sort(np.unique(sizes))[1]
    logs = np.log(plans.step_seconds) + np.where(sizes == slow, 0.15, 0.0)
    mean, _ = Surrogate.fit(seen_of(plans, logs, spread_over(plans, 40))).belief(plans)
    off = mean - logs
    assert np.abs(off[sizes == slow]).mean() < 0.03
    assert np.abs(off[sizes != slow]).mean() < 0.03


def test_a_term_that_costs_more_is_told_apart_from_the_others(plans: Priced) -> None:
    tensor = STEP_TERMS.index("tensor_seconds")
    dearer = plans.terms.copy()
    dearer[:, tensor] *= 1.6
    logs = np.log(dearer.sum(axis=1))
    mean, _ = Surrogate.fit(seen_of(plans, logs, spread_over(plans, 40))).terms()
    # The totals of steps alone tell terms apart only in part; a measured breakdown does so at once.
    assert mean[tensor] > 0.1
    assert mean[tensor] > mean[STEP_TERMS.index("compute_seconds")] + 0.05


def test_a_measured_breakdown_tells_of_a_term_after_two_trials(plans: Priced) -> None:
    tensor, rows = STEP_TERMS.index("tensor_seconds"), spread_over(plans, 40)
    rows = rows[plans.terms[rows, tensor] > 0][:2]
    factors = np.where(np.arange(len(STEP_TERMS)) == tensor, 1.4, 1.0)
    parts = np.full((2, len(PARTS)), np.nan)
    parts[:, list(PARTS).index("tensor_seconds")] = np.log(1.4 * plans.terms[rows, tensor])
    seen = Seen(plans.rows(rows), np.log(plans.terms[rows] @ factors), np.full(2, NOISE), parts)
    mean, spread = Surrogate.fit(seen).terms()
    without, unsure = Surrogate.fit(Seen(seen.priced, seen.log_seconds, seen.noise, parts * np.nan)).terms()
    assert mean[tensor] == pytest.approx(np.log(1.4), abs=0.08)
    assert abs(mean[tensor] - np.log(1.4)) < abs(without[tensor] - np.log(1.4))
    assert spread[tensor] < unsure[tensor]


def test_what_is_expected_of_plans_together_is_what_is_expected_of_each(plans: Priced, true_logs: Floats) -> None:
    fitted = Surrogate.fit(seen_of(plans, true_logs, spread_over(plans, 5)))
    some = plans.rows(np.arange(20))
    mean, covariance = fitted.joint(some)
    alone, spread = fitted.belief(some)
    assert mean == pytest.approx(alone)
    assert np.sqrt(np.diag(covariance)) == pytest.approx(spread, rel=1e-6)


def test_the_normal_distribution_is_as_in_its_table() -> None:
    z = np.array([-3.0, -1.0, 0.0, 1.0, 1.959964])
    assert cumulative(z) == pytest.approx([0.0013499, 0.1586553, 0.5, 0.8413447, 0.975], abs=2e-7)


def test_the_expected_improvement_counts_doubt_and_is_never_negative() -> None:
    gain = expected_improvement(0.0, np.array([0.0, 0.0, 5.0]), np.array([1.0, 0.1, 0.1]))
    assert gain[0] == pytest.approx(0.3989423, abs=1e-6)
    assert gain[1] < gain[0]
    assert gain[2] == 0.0
