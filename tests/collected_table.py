"""A sweep as one table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas

from results.tables.trial_rows import collected, columns_of
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord


def collect(record: SweepRecord, results: Sequence[TrialReading]) -> pandas.DataFrame:
    """The rows of the sweep's trials, and their columns."""
    return pandas.DataFrame(columns_of(collected(record, results)))
