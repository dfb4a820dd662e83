"""What was measured stays with its sweep when a later command makes other points of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from launcher.control.rules import rules_for
from sweeps.later_command.kept import Earlier, keep_measured
from sweeps.points.plan import plan_sweep
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import composed
from train_core.job.failures import without_numbers
from train_core.measurement import Outcome, Performance


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "smoke-local")


def command(folder: SweepFolder, *overrides: str) -> Earlier:
    """What `trisweep sweep smoke` does with these overrides, up to the moment at which trials start."""
    asked = composed(["sweep=smoke", *overrides])
    planned = Sweep(folder, plan_sweep(asked, proxy=False, git_sha=""))
    draft = rules_for(asked, planned.record, on_slurm=False).draft
    assert draft is not None
    earlier = keep_measured(planned, draft)
    folder.path.mkdir(exist_ok=True)
    folder.write_record(planned.record)
    return earlier


def measure(folder: SweepFolder, number: int) -> str:
    """Leave a result of the trial of that number, and return its id."""
    trial = Sweep.stored_in(folder).runnable[number]
    assert trial.experiment is not None
    required = [name for name, field in Performance.model_fields.items() if field.is_required()]
    values: dict[str, Any] = dict.fromkeys(required, 1.0) | {
        **dict.fromkeys(("num_timed_steps", "num_devices", "num_parameters"), 1),
        **dict.fromkeys(("flops_formula", "peak_source"), "made up for the test"),
        **{"peak_memory_bytes": (1,), "losses": (1.0,)},
    }
    ended = without_numbers(trial.experiment.fingerprint, Outcome.COMPLETED, "", time.time())
    files = folder.trial(trial.trial_id)
    files.path.mkdir(parents=True)
    files.write_measurement(ended.model_copy(update={"performance": Performance(**values)}))
    return trial.trial_id


def shown(folder: SweepFolder) -> list[str]:
    return [each.name for each in Sweep.stored_in(folder).read() if each.performance]


def test_other_points_join_what_was_measured_and_both_stay_with_the_whole_sweep(folder: SweepFolder) -> None:
    command(folder)
    first = measure(folder, 1)
    assert [trial.trial_id for trial in command(folder, "batch.micro_batch_size=4").kept] == [first]
    second = measure(folder, 0)
    assert shown(folder) == [second, first]
    command(folder)
    assert sorted(shown(folder)) == sorted([second, first])
    assert sum(trial.is_baseline for trial in Sweep.stored_in(folder).record.trials) == 1


def test_a_kept_trial_says_what_its_own_command_left_unsaid(folder: SweepFolder) -> None:
    command(folder)
    measure(folder, 1)
    (kept,) = command(folder, "batch.micro_batch_size=4").kept
    assert kept.point["batch.micro_batch_size"] == 1
    assert kept.chosen_because == "measured by an earlier command"


def test_the_next_command_with_the_same_values_keeps_what_is_kept(folder: SweepFolder) -> None:
    command(folder)
    first = measure(folder, 1)
    for _ in range(2):
        command(folder, "parallel.zero_stage=1")
    assert shown(folder) == [first]


def test_what_differs_in_more_than_its_layout_is_named_and_not_mixed_in(folder: SweepFolder) -> None:
    command(folder)
    first = measure(folder, 1)
    earlier = command(folder, "training.num_steps=9")
    assert earlier == Earlier((), (first,))
    assert not shown(folder)
    command(folder)
    assert shown(folder) == [first]
