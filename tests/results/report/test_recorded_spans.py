"""Recorded passes on one axis of time: the bubble of the textbook, and clocks of several machines."""

from __future__ import annotations

from itertools import pairwise

import pytest

from results.report.pipeline_spans import PipelineStep
from results.report.recorded_spans import offsets, recorded_step, uncertainty
from tests.results.report.recorded import BACKWARD, FORWARD, UPDATE, cut, made_up_stages
from train_core.trial.timeline import StageTimeline


def test_the_bubble_of_equal_stages_is_that_of_the_textbook() -> None:
    """m (F + B) of work in (m + p - 1) (F + B), and then the update."""
    step = recorded_step(made_up_stages(4, 8))
    assert step.pipeline_seconds == (8 + 4 - 1) * (FORWARD + BACKWARD)
    assert step.total_seconds == step.pipeline_seconds + UPDATE
    for stage in range(4):
        assert step.seconds(stage, "bubble") == pytest.approx(3 * (FORWARD + BACKWARD))
    assert step.mean_share("bubble") == pytest.approx(9 / 33.5)


def test_spans_follow_one_another_and_add_up_to_what_was_summed() -> None:
    step = recorded_step(made_up_stages(3, 5))
    for stage, of_stage in enumerate(step.spans):
        assert all(before.end == pytest.approx(after.start) for before, after in pairwise(of_stage))
        for kind, seconds in step.sums[stage].items():
            assert sum(span.end - span.start for span in of_stage if span.kind == kind) == pytest.approx(seconds)


def test_a_step_that_is_not_listed_whole_has_a_gap_and_its_whole_sums() -> None:
    whole = made_up_stages(2, 16)
    step = recorded_step([cut(stage, 8) for stage in whole])
    assert step.sums == recorded_step(whole).sums
    assert step.unlisted is not None
    first, last = step.unlisted
    assert 0 < first < last < step.pipeline_seconds
    assert not any(first < span.start and span.end < last for of_stage in step.spans for span in of_stage)


def test_ranks_of_one_machine_have_one_clock() -> None:
    first, second = made_up_stages(2, 4)
    stages = [first.model_copy(update={"began_at": 100.003}), second]
    assert offsets(stages) == pytest.approx([0.003, 0.0])
    assert uncertainty(stages) == 0.0


def begun_earlier(stage: StageTimeline, seconds: float) -> StageTimeline:
    """The stage with a clock by which everything is later, because it began the step so much earlier."""
    passes = tuple(
        each._replace(start=each.start + seconds, end=each.end + seconds, arrived=each.arrived + seconds)
        for each in stage.passes
    )
    return stage.model_copy(update={"passes": passes, "began_at": 7.0})


def test_clocks_of_two_machines_are_put_right_where_something_would_arrive_before_it_was_sent() -> None:
    """The second stage waits for the first one's output from its first moment on, so that its delay is known exactly
    from below; it cannot be later than the first one's wait for its gradients allows.
    """
    first, second = made_up_stages(2, 4, machines=("a", "b"))
    assert offsets([first, second]) == [0.0, 0.0], "the beginning of the step is taken for one moment where it can be"
    assert offsets([first, begun_earlier(second, 0.5)]) == pytest.approx([0.5, 0.0])
    assert uncertainty([first, second]) == pytest.approx(0.0)


def test_stages_that_have_sent_nothing_to_each_other_are_aligned_by_the_beginning_alone() -> None:
    first, second = made_up_stages(2, 4, machines=("a", "b"))
    alone = second.model_copy(update={"passes": tuple(each._replace(micro_batch=99) for each in second.passes)})
    assert offsets([first, alone]) == [0.0, 0.0]
    assert uncertainty([first, alone]) == float("inf")


def test_the_pipeline_is_full_with_the_first_gradient_of_the_first_stage() -> None:
    step: PipelineStep = recorded_step(made_up_stages(2, 4))
    assert step.filled_seconds == 2 * FORWARD + 2 * BACKWARD
