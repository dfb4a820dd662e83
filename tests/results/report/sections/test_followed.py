"""What is said of stages that have not begun. Every number is MADE UP."""

from __future__ import annotations

import pytest

from conf.types.stage_spec import StageSpec
from results.report.sections.followed import section
from sweeps.folder.journal import Cancelled, Journal
from sweeps.sweep import Sweep
from tests.results.conftest import WriteSweep, performance, trial
from tests.results.report.sections.conftest import rows_of, shown_of


@pytest.mark.parametrize(("is_cancelled", "said"), [(False, "waits"), (True, "cancelled")])
def test_a_stage_of_a_cancelled_sweep_waits_for_nobody(write_sweep: WriteSweep, is_cancelled: bool, said: str) -> None:
    folder = (begun := write_sweep([trial("base")], {"base": performance(100.0)})).folder
    spec = begun.record.spec.model_copy(update={"stages": {"evaluate": StageSpec(after="train")}})
    folder.write_record(begun.record.model_copy(update={"spec": spec}))
    if is_cancelled:
        Journal(folder.journal).append(Cancelled(trial_id=None))
    (row,) = rows_of(shown_of(section, Sweep.stored_in(folder)), "followed")
    assert row["evaluate"] == said
