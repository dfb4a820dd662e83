"""torch's profiler around chosen steps of chosen ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from conf.types.schema import ProfilePlan
from train_core.trial_folder import TrialFolder


@contextmanager
def trace_step(trial: TrialFolder | None, rank: int, plan: ProfilePlan, step: int) -> Iterator[None]:
    """Record the block if the plan asks for it, and leave a Chrome trace in the trial folder."""
    if trial is None or step not in plan.trace_steps or rank not in plan.trace_ranks:
        yield
        return
    from torch.profiler import profile  # here: the import takes a tenth of a second, and most ranks trace nothing

    with profile() as recorded:
        yield
    with trial.writing_trace(step, rank) as draft:
        recorded.export_chrome_trace(str(draft))
