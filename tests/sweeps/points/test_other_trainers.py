"""Sweeps over the options of another program: whatever is in its configuration can be an axis."""

from __future__ import annotations

from conf.plan.trainer_call import JOB_NAMES, call_of
from conf.types.sweep_spec import PointSet
from sweeps.points.plan import make_trials
from tests.composed import compose_tree

TREE = ("trainer=command", "trainer.command=[train.py]", "+trainer.flags={fused:false,depth:1}")
REFUSES = "+trainer.refuses=[{of:parallel.zero_stage,values:[1],because:it shards nothing}]"


def test_the_flags_of_a_program_can_be_axes() -> None:
    axes = {"trainer.flags.fused": (False, True), "trainer.flags.depth": (1, 2)}
    points = PointSet.model_validate({"axes": axes, "points": (), "baseline": {}})
    trials = make_trials(compose_tree(TREE), points, {})
    experiments = [trial.experiment for trial in trials if trial.experiment]
    job = dict.fromkeys(JOB_NAMES, "")
    assert [call_of(each.trainer, each, job).words[1:] for each in experiments] == [
        ("--depth", "1"),
        ("--depth", "2"),
        ("--fused", "--depth", "1"),
        ("--fused", "--depth", "2"),
    ]
    assert len({trial.trial_id for trial in trials}) == 4


def test_a_point_that_the_program_cannot_carry_out_is_a_row_with_its_reason() -> None:
    zero = PointSet.model_validate({"axes": {"parallel.zero_stage": (0, 1)}, "points": (), "baseline": {}})
    possible, impossible = make_trials(compose_tree([*TREE, REFUSES, "parallel.world_size=2"]), zero, {})
    assert possible.infeasible_reason is None
    assert impossible.infeasible_reason is not None
    assert "trainer my-trainer: it shards nothing" in impossible.infeasible_reason
