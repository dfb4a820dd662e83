"""A cheap look at a sweep: files that change, and clocks that do not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeps.sweep import Sweep, glance_at
from sweeps.trial import TICK_NS
from tests.results.conftest import finish, performance, sweep_writer, trial, write_steps
from train_core.trial.folder import TrialFolder

BASE, OTHER = trial("base", is_baseline=True), trial("other", world_size=2)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return sweep_writer(tmp_path)((BASE, OTHER), {"base": performance(100.0), "other": performance(190.0, 2)})


def _rewrite_in_place_and_hide_it(files: TrialFolder) -> None:
    before = files.measurement.stat()
    text = files.measurement.read_bytes()
    files.measurement.write_bytes(text.replace(b"190", b"191"))
    os.utime(files.measurement, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Sweep], object]] = {
    "a later measurement": lambda sweep: finish(sweep.folder, OTHER, performance(191.0, 2)),
    "one of the same size and time": lambda sweep: _rewrite_in_place_and_hide_it(sweep.folder.trial("other")),
    "another step": lambda sweep: write_steps(sweep.folder, "other", [7]),
    "no measurement": lambda sweep: sweep.folder.trial("other").measurement.unlink(),
    "a later record": lambda sweep: sweep.folder.write_record(sweep.record),
    "a command": lambda sweep: sweep.folder.journal.write_text("{}\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_sees(sweep: Sweep, change: str) -> None:
    before = glance_at(sweep).summary
    assert glance_at(sweep).summary == before
    time.sleep(0.02)  # the file system's clock ticks
    CHANGES[change](sweep)
    assert glance_at(sweep).summary != before


def test_it_takes_the_record_as_it_was_read_and_not_as_it_is_on_disk_meanwhile(sweep: Sweep) -> None:
    before = glance_at(sweep).summary
    later = sweep.record.model_copy(update={"created": sweep.record.created + 1})
    fewer = sweep.record.model_copy(update={"trials": sweep.record.trials[:1]})
    assert before not in {glance_at(sweep._replace(record=record)).summary for record in (later, fewer)}


def test_a_file_that_was_changed_a_moment_ago_may_change_again_without_getting_another_time(sweep: Sweep) -> None:
    glance = glance_at(sweep)
    assert not glance.is_sharp(time.time_ns())
    assert glance.is_sharp(time.time_ns() + TICK_NS)
