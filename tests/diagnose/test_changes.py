"""What is proposed is faster on paper, likely to fit, for the same devices and batch, and in the trainer's words."""

from __future__ import annotations

import pytest

from diagnose.diagnosis import Diagnosis, diagnose, in_short
from diagnose.difference import difference
from tests.diagnose.made_run import made_run

SLOW = {"tp": "8", "recompute": "full", "sequence_parallel": "no", "zero_stage": "0", "micro_batch": "1"}


@pytest.fixture(scope="module")
def slow() -> Diagnosis:
    return diagnose(made_run(1.5, columns=SLOW, settings={"overlap_grad_reduce": "False"}, allocated_gib=20))


def test_one_change_two_changes_and_the_best_plan_gain_more_and_more(slow: Diagnosis) -> None:
    found = [advice.proposal for advice in slow.advice]
    assert [each.kind for each in found] == ["one change", "two changes", "best plan"]
    assert [len(each.what) for each in found[:2]] == [1, 2]
    ratios = [each.ratio for each in found]
    assert ratios == sorted(ratios, reverse=True)
    for each in found:
        assert each.low_ratio < each.ratio < each.high_ratio
        assert each.fits >= 0.9
        setup = each.configuration.setup
        assert (setup.parallel.world_size, setup.batch.global_batch_size) == (64, 256)


def test_flags_to_paste_are_those_of_the_trainer(slow: Diagnosis) -> None:
    best = slow.advice[-1]
    setup = best.proposal.configuration.setup
    assert f"--tensor-model-parallel-size {setup.parallel.tensor_parallel_size}" in best.words
    assert "without --recompute-granularity" in best.words
    assert "--overlap-grad-reduce" in best.words  # which the run has not, whatever its trainer's file gives it


def test_flags_that_go_stand_behind_those_that_come() -> None:
    assert in_short(["--a 1", "without --b", "--c", "without --d"]) == "--a 1 --c; without --b --d"


def test_a_suspect_says_its_remedy_in_flags(slow: Diagnosis) -> None:
    remedies = {suspect.name: suspect.remedy for suspect in slow.suspects}
    assert remedies["full recomputation"].startswith("without --recompute-granularity")
    assert remedies["no sequence parallelism"] == "--sequence-parallel"


def test_torchtitan_and_deepspeed_are_told_in_their_own_words() -> None:
    columns = {"tp": "1", "sequence_parallel": None, "micro_batch": "1", "zero_stage": "3", "recompute": "full"}
    titan = diagnose(made_run(1.5, "torchtitan", {**columns, "compile": "yes"}))
    assert any(word.startswith("--activation_checkpoint.mode") for word in titan.advice[-1].words)
    deepspeed = diagnose(made_run(1.5, "deepspeed", columns))
    assert "without --gradient_checkpointing" in deepspeed.advice[-1].words


def test_a_plan_that_does_not_fit_beside_what_the_run_held_is_not_proposed() -> None:
    columns = {**SLOW, "tp": "2", "sequence_parallel": "yes"}
    roomy = diagnose(made_run(1.2, columns=columns, allocated_gib=None))
    assert roomy.case is not None
    needed = roomy.case.predicted.allocated_bytes / 2**30
    # A run that held 40 % more than predicted leaves less room to all plans.
    full = diagnose(made_run(1.2, columns=columns, allocated_gib=1.4 * needed))
    assert full.case is not None
    assert full.case.risk.headroom_bytes > roomy.case.risk.headroom_bytes
    assert all(advice.proposal.fits >= 0.9 for advice in full.advice)


def test_differences_of_two_runs_add_up_to_that_of_their_predictions() -> None:
    before = diagnose(made_run(columns=SLOW, settings={"overlap_grad_reduce": "False", "log_interval": "10"}))
    after = diagnose(made_run(settings={"overlap_grad_reduce": "True", "log_interval": "100"}))
    found = difference(before, after)
    assert found.predicted_seconds is not None
    low, high = found.predicted_seconds[1], found.predicted_seconds[0]
    assert sum(change.seconds or 0.0 for change in found.changes) == pytest.approx(low - high, rel=1e-6)
    said = " | ".join(change.says for change in found.changes)
    assert "recompute full -> none" in said
    assert "overlap of the gradients' reduction is there now" in said
    assert next(change.seconds for change in found.changes if change.says.startswith("log_interval")) is None


def test_two_equal_runs_do_not_differ() -> None:
    found = difference(diagnose(made_run()), diagnose(made_run()))
    assert found.changes == ()
