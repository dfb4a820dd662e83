"""Whether a plan fits, as far as trials have shown: measured bytes, and those that ran out of memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conf.units import GIBIBYTE
from costs.setting import Floats
from sweeps.memory_odds import MemoryOdds
from sweeps.search.layouts.memory_fit import MemoryFit, MemorySeen
from sweeps.search.layouts.observed import Observer
from sweeps.search.layouts.priced import Priced
from tests.sweeps.search.conftest import Replay
from train_core.job.failures import failed_measurement, failure_of


@pytest.fixture(scope="module")
def plans(replay: Replay) -> Priced:
    priced = replay.search.candidates.prices
    fullest = np.argsort(priced.peak_bytes)[len(priced) // 2 :]
    return priced.rows(fullest[:: len(fullest) // 200])


def fitted(plans: Priced, exact: list[tuple[int, float]], bounds: list[tuple[int, float]]) -> MemoryFit:
    return MemoryFit.fit(MemorySeen.of(plans.plans, exact, bounds), "trisweep")


def likely(fit: MemoryFit, plans: Priced) -> Floats:
    return fit.probability(plans.plans, plans.peak_bytes, plans.memory_bytes)


@pytest.mark.slow
def test_without_trials_plans_are_as_likely_to_fit_as_by_published_runs_of_the_trainer(plans: Priced) -> None:
    odds, memory = MemoryOdds.of("trisweep", 1024), float(plans.memory_bytes[0])
    expected = [odds.likelihood(needed, memory) for needed in plans.peak_bytes.tolist()]
    assert likely(fitted(plans, [], []), plans) == pytest.approx(expected, abs=1e-6)
    assert fitted(plans, [], []).of_another_kind(odds).needed.stdev == pytest.approx(odds.needed.stdev)


@pytest.mark.slow
def test_measured_bytes_move_the_margin_of_all_plans(plans: Priced) -> None:
    less, more = (fitted(plans, [(0, ratio), (1, ratio)], []).ratio(plans.plans) for ratio in (-0.08, 0.08))
    before = fitted(plans, [], []).ratio(plans.plans)
    assert (less[0] < before[0]).all()
    assert (more[0] > before[0]).all()
    assert (less[1] < before[1]).all()


@pytest.mark.slow
def test_a_plan_that_ran_out_of_memory_makes_fuller_ones_unlikely(plans: Priced) -> None:
    crowded = int(np.searchsorted(plans.peak_bytes / plans.memory_bytes, 0.94))
    bound = float(np.log(plans.memory_bytes[crowded] / plans.peak_bytes[crowded]))
    probability = likely(fitted(plans, [], [(crowded, bound)]), plans)
    assert probability[crowded] < 0.3
    assert probability[-1] < 0.3


@pytest.mark.parametrize(
    ("words", "lacked"),
    [
        ("Tried to allocate 2.50 GiB. GPU 0 has 63.98 GiB, of which 512.00 MiB is free.", 2 * GIBIBYTE),
        ("Tried to allocate 512.00 KiB. GPU 0 has 63.98 GiB, of which 100.00 KiB is free.", 412 * 1024),
        ("Step 7.0 exceeded memory limit (3221225472 > 1073741824), being killed", 2 * GIBIBYTE),
        ("the kernel ended a process for lack of memory", 0),
    ],
)
def test_a_bound_is_by_how_much_the_failed_request_exceeded_what_was_free(
    replay: Replay, words: str, lacked: int
) -> None:
    told = failure_of(3, torch.OutOfMemoryError(words))
    crowded = replay.ended(replay.baseline, lambda measured: failed_measurement(measured.fingerprint, told, 0.0))
    observed = Observer(None).observe([crowded])
    needed = np.exp(observed.memory().ratios) * observed.priced.peak_bytes
    assert needed - observed.priced.memory_bytes == pytest.approx([lacked], abs=1)
