"""Alpha-beta fits of link times."""

from __future__ import annotations

import pytest

from rates.link_fit import fit_link, fit_patterns
from rates.record import PATTERNS, LinkTime, MeasuredSpread, Pattern

LATENCY_SECONDS, BANDWIDTH = 5e-6, 40e9
SIZES = [2**power for power in range(10, 27, 4)]


def seconds_of(
    pattern: Pattern, num_ranks: int, num_bytes: int, latency: float = LATENCY_SECONDS, bandwidth: float = BANDWIDTH
) -> float:
    """What a ring algorithm takes."""
    if pattern == "transfer":
        return latency + num_bytes / bandwidth
    gather = (num_ranks - 1) * latency + num_bytes * (num_ranks - 1) / num_ranks / bandwidth
    return gather * (2 if pattern == "all_reduce" else 1)


def time_of(pattern: Pattern, num_ranks: int, num_bytes: int, seconds: float) -> LinkTime:
    spread = MeasuredSpread(median=seconds, lowest=seconds, highest=seconds)
    return LinkTime(link="nvlink", pattern=pattern, num_ranks=num_ranks, num_bytes=num_bytes, seconds=spread)


def times_of(patterns: tuple[Pattern, ...] = PATTERNS, **link: float) -> list[LinkTime]:
    return [
        time_of(pattern, num_ranks, num_bytes, seconds_of(pattern, num_ranks, num_bytes, **link))
        for pattern in patterns
        for num_ranks in (2, 8)
        for num_bytes in SIZES
    ]


def test_the_fit_recovers_the_latency_and_bandwidth_that_made_the_times() -> None:
    fit = fit_link(times_of())
    assert fit.latency_seconds == pytest.approx(LATENCY_SECONDS, rel=1e-6)
    assert fit.bandwidth_bytes_per_second == pytest.approx(BANDWIDTH, rel=1e-6)
    assert fit.error < 1e-6


def test_a_time_that_was_disturbed_does_not_move_the_fit() -> None:
    times = times_of(("all_reduce",))
    disturbed = [*times[:-1], time_of("all_reduce", 8, SIZES[-1], 5 * times[-1].seconds.median)]
    fit = fit_link(disturbed)
    assert fit.latency_seconds == pytest.approx(LATENCY_SECONDS, rel=0.01)
    assert fit.bandwidth_bytes_per_second == pytest.approx(BANDWIDTH, rel=0.01)


def test_each_pattern_has_a_fit_of_its_own_and_the_link_gets_their_median() -> None:
    slow = times_of(("reduce_scatter",), bandwidth=BANDWIDTH / 4)
    times = [*times_of(("all_reduce", "all_gather")), *slow]
    fits = fit_patterns(times)
    assert fits["reduce_scatter"].bandwidth_bytes_per_second == pytest.approx(BANDWIDTH / 4, rel=1e-6)
    assert "transfer" not in fits
    assert fit_link(times).bandwidth_bytes_per_second == pytest.approx(BANDWIDTH, rel=1e-6)
    assert fit_link(times).error < 1e-6
    assert fit_link(slow).error < 1e-6


def test_messages_too_small_to_show_bandwidth_give_a_latency_and_the_highest_rate_seen() -> None:
    times = [time_of("transfer", 2, num_bytes, 1e-3) for num_bytes in (8, 16, 32)]
    fit = fit_link(times)
    assert fit.latency_seconds == pytest.approx(1e-3, rel=1e-3)
    assert fit.bandwidth_bytes_per_second >= 32 / 1e-3
