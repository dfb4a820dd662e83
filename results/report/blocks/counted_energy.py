"""Energy as counters of the devices said it, beside what the declared watts would come to."""

from __future__ import annotations

from collections.abc import Sequence

from results.footprint import declared_footprint
from results.report.table import Cell, ReportTable, number, text
from results.slurm_energy import slurm_watts
from results.units import in_three_digits
from sweeps.reading import TrialReading, ranked

MOST_COUNTED = 10
COUNTED_NUMERIC = ("J/step", "J/token", "W", "idle W", "counted s", "hosts J/step", "Slurm W", "declared J/token")
COUNTED_COLUMNS = ("layout", *COUNTED_NUMERIC, "counters")
COUNTED = (
    "Measured by counters, over the timed steps; idle power is in all of it, and stands beside it where it was"
    " measured. Slurm's power is of whole nodes and of the whole job, start and end included; where there is none, the"
    " site accounts for no energy. What the declared watts would be is no measurement."
)


def counted_table(results: Sequence[TrialReading]) -> ReportTable | None:
    """What counters said of each trial, beside what its declared watts would be."""
    rows = [_counted_row(result) for result in ranked(list(results))[:MOST_COUNTED]]
    shown = tuple(row for row in rows if row is not None)
    return ReportTable(COUNTED_COLUMNS, shown, frozenset(COUNTED_NUMERIC)) if shown else None


def _counted_row(result: TrialReading) -> tuple[Cell, ...] | None:
    performance = result.performance
    if performance is None or result.experiment is None or performance.energy_joules_per_step is None:
        return None
    values = (
        performance.energy_joules_per_step,
        performance.energy_joules_per_token,
        performance.energy_watts,
        performance.energy_idle_watts,
        performance.energy_seconds,
        performance.energy_host_joules_per_step,
        slurm_watts(result.folder),
        declared_footprint(result.experiment, performance).joules_per_token,
    )
    return text(result.label), *map(_rounded, values), text(performance.energy_source or "")


def _rounded(value: float | None) -> Cell:
    return number(in_three_digits(value), value)
