"""What a command says beforehand of the time that its trials take."""

from __future__ import annotations

import pytest

from cli.commands.sweep.sweep_run import START_SECONDS, cost_text, num_too_long, seconds_here
from conf.folders import options
from launcher.control.composed_rules import budget_of
from launcher.control.rules import predicted_seconds
from launcher.local.machine import MachineCapacity
from sweeps.points.plan import plan_sweep
from tests.composed import composed
from tests.conftest import BuildRecord

TWO_CORES = MachineCapacity(num_cores=2, memory_bytes=2**33, num_devices=0)
SEARCHED = {"frontier-study"}
"""Its jobs have the study's own limit, and those that run into it are failures, as they were there."""


def test_the_time_here_counts_starts_and_what_runs_at_once(build_record: BuildRecord) -> None:
    sizes = [{"parallel.world_size": size, "parallel.tensor_parallel_size": size} for size in (1, 1, 2, 4)]
    trials = build_record([*sizes], []).trials
    one, two, four = (START_SECONDS + predicted_seconds(trials[number]) for number in (0, 1, 2))
    assert len(trials) == 3, "equal points are one trial"
    # A trial of one rank leaves a core free, and one of four ranks takes both, as one of two does.
    assert seconds_here(trials, TWO_CORES) == pytest.approx(one / 2 + two + four)


@pytest.mark.parametrize("name", sorted(set(options("sweep")) - SEARCHED))
def test_no_point_of_a_shipped_sweep_is_predicted_to_run_into_its_time_limit(name: str) -> None:
    asked = composed([f"sweep={name}"])
    record = plan_sweep(asked, proxy=False, git_sha="")
    chosen = [trial for trial in record.trials if trial.selected]
    assert chosen
    assert num_too_long(chosen, budget_of(asked.settings, record, on_slurm=True)) == 0


def test_the_hours_of_a_small_job_are_not_rounded_to_none() -> None:
    assert [cost_text(hours) for hours in (0.5, 7.5, 8512.3)] == ["0.5", "7.5", "8,512"]
