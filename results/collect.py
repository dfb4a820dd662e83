"""One row per trial: what it is, how it ended, what was predicted for it and what was measured.

A column is either `predicted_*` or `measured_*`, named after the same field, never both; published figures are no
columns of this table at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas

from results.scaling import scalings
from results.trial_rows import plan_row, repeat_columns, trial_row
from sweeps.chains import chain_metrics
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord


def collect(results: Sequence[TrialReading]) -> pandas.DataFrame:
    """A sweep as a table in the order of its record.

    The columns are the same however far it has come, but for the figures of its later stages, which only these know.
    """
    aligned = zip(results, scalings(results), repeat_columns(results), strict=True)
    found = chain_metrics(results)
    return pandas.DataFrame(
        [
            trial_row(result, relation) | repeats | _figures(found.get(result.name, {}))
            for result, relation, repeats in aligned
        ]
    )


def _figures(found: Mapping[str, float]) -> dict[str, float]:
    """What later stages measured of a trial, in columns of its row."""
    return {f"measured_{name}": value for name, value in found.items()}


def plan_frame(record: SweepRecord) -> pandas.DataFrame:
    """Points that are predicted only, with the same identity and `predicted_*` columns."""
    return pandas.DataFrame([plan_row(trial, record.plan_label_of(trial)) for trial in record.plan])
