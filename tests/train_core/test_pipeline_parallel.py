"""Properties of the 1F1B action lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from train_core.pipeline_parallel import Action, one_forward_one_backward

stages = st.integers(1, 12)
micro_batches = st.integers(1, 40)


@given(stages, micro_batches, st.data())
def test_every_micro_batch_goes_forward_once_then_backward_once(num_stages: int, m: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, num_stages - 1))
    actions = one_forward_one_backward(num_stages, stage, m)
    assert len(actions) == 2 * m
    for index in range(m):
        assert actions.index(Action("forward", index)) < actions.index(Action("backward", index))


@given(stages, micro_batches, st.data())
def test_a_stage_holds_no_more_than_the_stages_from_it_to_the_end(num_stages: int, m: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, num_stages - 1))
    in_flight, most = 0, 0
    for action in one_forward_one_backward(num_stages, stage, m):
        in_flight += 1 if action.kind == "forward" else -1
        most = max(most, in_flight)
    assert most == min(m, num_stages - stage)
    assert in_flight == 0


@given(stages, micro_batches)
def test_the_stages_together_never_wait_in_a_circle(num_stages: int, m: int) -> None:
    left = [list(one_forward_one_backward(num_stages, stage, m)) for stage in range(num_stages)]
    done: set[tuple[int, Action]] = set()
    while any(left):
        progressed = False
        for stage, actions in enumerate(left):
            while actions and _can_run(stage, actions[0], num_stages, done):
                done.add((stage, actions.pop(0)))
                progressed = True
        assert progressed, f"stuck with {left}"


def _can_run(stage: int, action: Action, num_stages: int, done: set[tuple[int, Action]]) -> bool:
    if action.kind == "forward":
        return stage == 0 or (stage - 1, action) in done
    return stage == num_stages - 1 or (stage + 1, action) in done


def test_the_last_stage_alternates_from_the_start() -> None:
    kinds = [action.kind for action in one_forward_one_backward(4, 3, 5)]
    assert kinds == ["forward", "backward"] * 5
