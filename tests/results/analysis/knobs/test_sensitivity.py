"""Which knob mattered, on a made-up machine on which that is known."""

from __future__ import annotations

import math
import random

import pytest

from results.analysis.knobs.sensitivity import (
    Sensitivity,
    finding,
    memory_counts,
    memory_shares,
    sensitivity,
    why_untold,
)
from results.analysis.knobs.table import KnobPoint, KnobTable
from tests.results.analysis.knobs.points import table


@pytest.fixture(scope="module")
def found() -> Sensitivity:
    return sensitivity(table())


@pytest.mark.slow
def test_knobs_come_in_the_order_of_what_they_do(found: Sensitivity) -> None:
    names = [effect.column.name for effect in found.effects]
    assert names == ["micro_batch_size", "tensor_parallel_size", "pipeline_parallel_size", "zero_stage"]
    assert sum(effect.share for effect in found.effects) == pytest.approx(1.0)
    assert all(effect.low <= effect.share <= effect.high for effect in found.effects[:3])
    by_fanova = sorted(found.effects, key=lambda effect: -effect.fanova)
    assert [effect.column.name for effect in by_fanova[:2]] == names[:2]


@pytest.mark.slow
def test_the_effect_of_a_knob_is_what_was_put_in(found: Sensitivity) -> None:
    """From 1 to 8, the made-up rate grows by 90 %; trees, which take means, find a little less."""
    micro = found.effects[0]
    assert (micro.fastest_at, micro.slowest_at) == (8, 1)
    assert micro.gain == pytest.approx(0.9, rel=0.25)
    assert found.effects[-1].gain < 0.03


@pytest.mark.slow
def test_one_sentence_names_the_knob_and_what_it_does(found: Sensitivity) -> None:
    assert found.is_told
    assert finding(found).startswith(
        f"Micro-batch size mattered most in {found.num_points} measured trials: micro-batch size 8 is "
    )


@pytest.mark.slow
def test_the_same_points_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.analysis.knobs.sensitivity.NUM_DRAWS", 4)
    few = table(keep=0.25)
    assert sensitivity(few) == sensitivity(few)


@pytest.mark.slow
def test_rates_that_no_knob_explains_are_called_so() -> None:
    draw = random.Random(3)
    noise = [KnobPoint(point.settings, math.exp(draw.gauss(30, 0.1))) for point in table(keep=0.3).rated_points]
    found = sensitivity(KnobTable("measured", tuple(noise)))
    assert not found.is_told
    assert "do not tell which knob mattered" in finding(found)


@pytest.mark.slow
def test_knobs_that_cannot_be_told_apart_share_the_first_place() -> None:
    draw = random.Random(5)
    equal = [
        KnobPoint(
            {"tensor_parallel_size": t, "pipeline_parallel_size": p},
            1e14 / (1 + 0.2 * t + 0.2 * p) * draw.uniform(0.99, 1.01),
        )
        for t in (1, 2, 4, 8)
        for p in (1, 2, 4, 8)
    ]
    said = finding(sensitivity(KnobTable("predicted", tuple(equal))))
    assert said.startswith(("Tensor-parallel size and pipeline stages", "Pipeline stages and tensor-parallel size"))
    assert "16 predicted points do not tell which of them more" in said


@pytest.mark.slow
def test_a_few_trials_are_too_few() -> None:
    few = KnobTable("measured", table().rated_points[:40:5])
    assert why_untold(few) == "8 trials with a rate are too few for 4 knobs: at least 12 are needed"


@pytest.mark.slow
def test_what_runs_out_of_memory_is_counted_by_value() -> None:
    counts = {(each.column.name, each.words): (each.num_out, each.num_trials) for each in memory_counts(table())}
    out, trials = counts["micro_batch_size", "8"]
    assert 0 < out < trials
    assert counts["micro_batch_size", "1"][0] == 0
    assert counts["tensor_parallel_size", "1"][0] == out
    assert memory_counts(KnobTable("measured", table().rated_points)) == []


@pytest.mark.slow
def test_what_decides_whether_a_trial_runs_out_of_memory_is_told_apart_from_what_makes_it_fast() -> None:
    whole = table(keep=1.0)
    shares = {column.name: share for column, share in memory_shares(whole)}
    assert set(list(shares)[:2]) == {"micro_batch_size", "tensor_parallel_size"}
    assert shares["zero_stage"] < 0.05
    assert memory_shares(KnobTable("measured", whole.rated_points)) == []


@pytest.mark.slow
def test_equal_rates_tell_nothing_and_are_called_so() -> None:
    """Trees have nothing to split then, which fANOVA takes for a mistake of the caller's."""
    equal = [KnobPoint(point.settings, 1e14) for point in table(keep=0.3).rated_points]
    assert why_untold(KnobTable("measured", tuple(equal))) == f"all {len(equal)} trials have the same rate"
