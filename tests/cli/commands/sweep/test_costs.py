"""What a command says beforehand of the time that its trials take."""

from __future__ import annotations

import pytest

from cli.commands.sweep.costs import START_SECONDS, seconds_here
from launcher.control.budget import predicted_seconds
from launcher.this_machine.capacity import MachineCapacity
from tests.conftest import BuildRecord

TWO_CORES = MachineCapacity(num_cores=2, memory_bytes=2**33, num_devices=0)


def test_the_time_here_counts_starts_and_what_runs_at_once(build_record: BuildRecord) -> None:
    sizes = [{"parallel.world_size": size, "parallel.tensor_parallel_size": size} for size in (1, 1, 2, 4)]
    trials = build_record([*sizes], []).trials
    one, two, four = (START_SECONDS + predicted_seconds(trials[number]) for number in (0, 1, 2))
    assert len(trials) == 3, "equal points are one trial"
    # A trial of one rank leaves a core free, and one of four ranks takes both, as one of two does.
    assert seconds_here(trials, TWO_CORES) == pytest.approx(one / 2 + two + four)
