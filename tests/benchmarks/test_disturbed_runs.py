"""The replays of disturbed sweeps, a few of them."""

from __future__ import annotations

import pytest

from benchmarks.disturbed_runs import Replay, replay_of
from sweeps.ranking.points import MeasuredPoint


def wrong(replays: list[Replay]) -> int:
    return sum(not each.is_right for each in replays)


@pytest.mark.slow
def test_few_verdicts_are_wrong_and_some_name_a_point() -> None:
    replays = [replay_of(seed, 0.15) for seed in range(40)]
    assert wrong(replays) <= 2
    assert any(each.is_named for each in replays)
    caught, missed = (sum(counted.total() for counted in each) for each in zip(*(r[:2] for r in replays), strict=True))
    assert caught > 9 * missed


def test_a_verdict_that_takes_no_interval_for_an_overlap_is_seen_to_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasuredPoint, "may_equal", lambda point, other: False)
    assert wrong([replay_of(seed, 0.15) for seed in range(40)]) > 2
