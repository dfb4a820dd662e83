"""A command that names values of what its sweep varies measures a part of it; the sweep stays what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeps.later_command import restriction_of
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.composed import composed


@pytest.mark.slow
def test_a_value_of_an_axis_names_a_part_that_shares_the_whole_record(tmp_path: Path) -> None:
    part = restriction_of(composed(["sweep=1t", "batch.micro_batch_size=2"]), proxy=True)
    assert part is not None
    assert part.name == "micro_batch_size=2"
    whole = part.whole_record
    assert len(whole.trials) == 10
    assert [trial.point for trial in whole.trials if part.holds(trial)] == [{"batch.micro_batch_size": 2}]

    sweep = Sweep(SweepFolder(tmp_path), part.complete_record())
    assert sweep.record.trials == whole.trials
    shown = part.part(sweep)
    assert [trial.point for trial in shown.record.trials] == [{"batch.micro_batch_size": 2}]
    assert shown.folder.report("html").name == "report-micro_batch_size=2.html"
    assert sweep.folder.report("html").name == "report.html"
    assert shown.record.overrides == ("batch.micro_batch_size=2",)


def test_what_the_sweep_does_not_vary_names_no_part() -> None:
    assert restriction_of(composed(["sweep=strong-175b", "training.num_steps=5"]), proxy=True) is None
    assert restriction_of(composed(["sweep=strong-175b"]), proxy=True) is None


def test_a_value_that_makes_other_points_is_a_sweep_of_its_own() -> None:
    """Points that do not state the number of devices would get another one."""
    points = "sweep.points=[{parallel.tensor_parallel_size: 8}, {parallel.world_size: 512}]"
    assert restriction_of(composed(["sweep=strong-175b", points, "parallel.world_size=512"]), proxy=False) is None


def test_points_beyond_max_trials_are_measured_where_they_are_asked_for() -> None:
    asked = composed(["sweep=strong-175b", "parallel.world_size=256", "sweep.max_trials=1"])
    part = restriction_of(asked, proxy=False)
    assert part is not None
    whole = part.whole_record
    assert [trial.selected for trial in whole.trials] == [True, False, False, False]
    assert [trial.selected for trial in part.complete_record().trials] == [True, True, False, False]


def test_a_part_has_the_later_stages_of_its_trials(tmp_path: Path) -> None:
    part = restriction_of(composed(["sweep=strong-175b", "parallel.world_size=256"]), proxy=False)
    assert part is not None
    record = part.complete_record()
    points = [each.model_copy(update={"trial_id": f"point-{number}"}) for number, each in enumerate(record.trials)]
    stages = [
        Trial(trial_id=f"{stage}-{number}", point={}, stage=stage, after=f"{after}-{number}")
        for after, stage in (("point", "infer"), ("infer", "evaluate"))
        for number in range(len(points))
    ]
    whole = record.model_copy(update={"trials": (*points, *stages)})
    shown = part.part(Sweep(SweepFolder(tmp_path), whole)).record.trials
    (own,) = [each.trial_id.removeprefix("point-") for each in points if part.holds(each)]
    assert [each.trial_id for each in shown] == [f"{name}-{own}" for name in ("point", "infer", "evaluate")]
