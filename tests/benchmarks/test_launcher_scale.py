"""The benchmark of commands at scale, on sweeps of four trials."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.launcher_scale import commands_of
from benchmarks.measured_command import measure


def test_a_command_is_run_and_what_it_took_is_counted() -> None:
    taken = measure("list", ["list", "sweep"], os.environ)
    assert taken.opened > 0 < taken.statted
    assert taken.mebibytes > 1 < taken.printed
    assert taken.fsyncs == 0


@pytest.mark.thorough  # than the one above
def test_it_takes_two_sweeps_through_all_that_a_made_up_slurm_says(tmp_path: Path) -> None:
    assert len(commands_of(tmp_path, 4, reports=False)) == 10
