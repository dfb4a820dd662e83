"""Trisweep in Python: plan on paper, sweep, and read what was measured.

    import trisweep

    plans = trisweep.plan(model="gpt-175b", cluster="frontier", devices=1024)
    plans.best.layout, plans.best.step_seconds
    plans.to_dataframe()

    results = trisweep.load("runs/175b-proxy")
    results.best, results.intervals
    results.to_dataframe()

plan            predict the points of a sweep, or search all plans of a model
estimate        predict every row of a table of configurations
sweep           plan, measure and report, as the command does
load            what a sweep has measured so far
diagnose        why a run of yours is slow, from its log

entry           the `trisweep` script, and how the packages below are found
face            the functions
rows            the classes of what they return

The packages behind these (`conf`, `sweeps`, `results` ...) lie below this folder in an installed wheel and beside it in
a checkout, and import each other by their own names. They are found at the first use of a name of this module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trisweep.face import ConfigError as ConfigError
    from trisweep.face import InfeasiblePlan as InfeasiblePlan
    from trisweep.face import TrisweepError as TrisweepError
    from trisweep.face import UsageError as UsageError
    from trisweep.face import diagnose as diagnose
    from trisweep.face import estimate as estimate
    from trisweep.face import load as load
    from trisweep.face import plan as plan
    from trisweep.face import sweep as sweep
    from trisweep.rows import DiagnosedRun as DiagnosedRun
    from trisweep.rows import MeasuredTrial as MeasuredTrial
    from trisweep.rows import PredictedPlan as PredictedPlan
    from trisweep.rows import PredictedPlans as PredictedPlans
    from trisweep.rows import RankedPoint as RankedPoint
    from trisweep.rows import SweepResults as SweepResults

ROWS = ("DiagnosedRun", "MeasuredTrial", "PredictedPlan", "PredictedPlans", "RankedPoint", "SweepResults")
ERRORS = ("ConfigError", "InfeasiblePlan", "TrisweepError", "UsageError")
FUNCTIONS = ("diagnose", "estimate", "load", "plan", "sweep")
__all__ = [*ROWS, *ERRORS, *FUNCTIONS]  # noqa: PLE0604 (three lists of names)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trisweep.entry import find_packages

    find_packages()
    return getattr(import_module("trisweep.rows" if name in ROWS else "trisweep.face"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
