"""The choice of trials to show where a terminal has fewer lines than a sweep has trials."""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.reading import Reading
from train_core.measurement import Outcome

GOOD_ENDS = (Outcome.COMPLETED, Outcome.PRUNED, Outcome.INFEASIBLE)


def worth_showing(states: Sequence[Reading], rows: int) -> list[Reading]:
    """As many as there are rows: the best, the last that failed, those that run, the last that ended, those that wait.

    A quarter of the rows is kept for failures, which would otherwise be lost behind hundreds that run.
    """
    relevant = [state for state in states if state.outcome is not None]
    if len(relevant) <= rows:
        return relevant
    newest = sorted(relevant, key=lambda state: -(state.ended or 0.0))
    troubled = [state for state in newest if is_troubled(state)]
    order = [*_best(relevant), *troubled[: rows // 4]]
    order += [state for state in relevant if state.outcome is Outcome.RUNNING]
    order += [state for state in newest if state.ended]
    order += sorted(relevant, key=lambda state: state.outcome is not Outcome.PENDING)
    kept = set(list(dict.fromkeys(state.name for state in order))[:rows])
    # What is shown keeps the order of the sweep, so that lines do not jump about when a trial ends.
    return [state for state in relevant if state.name in kept]


def is_troubled(state: Reading) -> bool:
    """True if it ended badly, or waits although it was started."""
    ended_badly = state.outcome is not None and state.outcome.is_final and state.outcome not in GOOD_ENDS
    return ended_badly or (state.outcome is Outcome.PENDING and bool(state.cause))


def _best(states: Sequence[Reading]) -> list[Reading]:
    """The trial that was measured to be the fastest, if any was."""
    measured = [state for state in states if state.performance]
    return [max(measured, key=lambda state: state.model_flops_per_second_per_device or 0.0)] if measured else []
