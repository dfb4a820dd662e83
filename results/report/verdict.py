"""The answer of a sweep in a few sentences, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence

from results.units import count, percent, seconds, tflops
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord
from train_core.measurement import Outcome, Performance


def verdict(record: SweepRecord, results: Sequence[TrialReading], best_first: Sequence[TrialReading]) -> str:
    """Which layout is fastest, or, when nothing was measured, what to do. Text between backticks is a command."""
    num_live = sum(result.outcome in (Outcome.PENDING, Outcome.RUNNING) for result in results)
    if best_first:
        unfinished = f" The sweep is not finished: {num_live} of its trials are pending or running." if num_live else ""
        return _best_sentence(best_first) + unfinished
    if num_live:
        return (
            f"Nothing has been measured yet: the trials are still pending or running."
            f" See `trisweep status {record.name}`, and write this report again when some have ended."
        )
    return (
        f"Nothing was measured: every trial failed or cannot run. The causes are below; fix the first one and run"
        f" `trisweep sweep {record.name}` again."
    )


def _best_sentence(best_first: Sequence[TrialReading]) -> str:
    best = best_first[0]
    assert best.performance is not None
    sentence = (
        f"Fastest per device: {best.label} with {tflops(best.performance.model_flops_per_second_per_device)} model"
        f" TFLOPS per device ({percent(best.performance.model_flops_utilization)} % of the peak), a step every"
        f" {seconds(best.performance.step_seconds)} s."
    )
    tied = [result.label for result in best_first[1:] if _overlap(result.performance, best.performance)]
    if tied:
        shown = ", ".join(tied[:3]) + (f" and {len(tied) - 3} more" if len(tied) > 3 else "")
        sentence += f" Within the spread of its steps, and so not clearly slower: {shown}."
    return sentence + _best_by_size(best_first)


def _best_by_size(best_first: Sequence[TrialReading]) -> str:
    """The best layout for each number of devices, because few devices are easily faster per device than many."""
    best: dict[int, TrialReading] = {}
    for result in best_first:
        if result.performance:
            best.setdefault(result.performance.num_devices, result)
    if len(best) < 2:
        return ""
    named_by_size = (f"on {size}, {best[size].label} ({_tokens(best[size])} tokens/s)" for size in sorted(best))
    return f" Fastest by number of devices: {'; '.join(named_by_size)}."


def _tokens(result: TrialReading) -> str:
    return count(result.performance.tokens_per_second if result.performance else None)


def _overlap(other: Performance | None, best: Performance) -> bool:
    """Whether the other's fastest step is as fast, per device, as the slowest step of the best."""
    if other is None:
        return False
    return _rates(other)[1] >= _rates(best)[0]


def _rates(performance: Performance) -> tuple[float, float]:
    """Lowest and highest model FLOP/s per device of a timed step."""
    per_device = performance.model_flops / performance.num_devices
    return per_device / performance.step_seconds_max, per_device / performance.step_seconds_min


def rate_spread(performance: Performance) -> tuple[float, float]:
    """How far the rate reaches below and above its median, in model FLOP/s per device."""
    low, high = _rates(performance)
    middle = performance.model_flops_per_second_per_device
    return max(0.0, middle - low), max(0.0, high - middle)
