"""The longest chain of recorded passes."""

from __future__ import annotations

from benchmarks.timeline import Recorded, chain_seconds
from train_core.parallel.schedules import one_forward_one_backward, zero_bubble


def test_the_chain_of_equal_passes_is_the_textbook_bubble() -> None:
    """Forward and both halves of backward take 1 s each: (m + p - 1) 3 s, and m 3 s + (p - 1) 1 s."""
    whole = {"forward": 1.0, "backward": 2.0}
    halves = {"forward": 1.0, "backward": 1.0, "weight": 1.0}
    plain = [[(action, whole[action.kind]) for action in one_forward_one_backward(4, stage, 6)] for stage in range(4)]
    split = [[(action, halves[action.kind]) for action in zero_bubble(4, stage, 6)] for stage in range(4)]
    assert chain_seconds(plain) == (6 + 3) * 3
    assert chain_seconds(split) == 6 * 3 + 3


def test_recorded_actions_are_the_same_actions() -> None:
    actions = zero_bubble(4, 1, 6)
    recorded = Recorded(actions)
    assert list(recorded) == actions == [action for action, _ in recorded.timeline]
