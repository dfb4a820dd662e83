"""The answer says where the best point lies at the end of an axis, and whose losses were rising at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from results.analysis.findings.verdict import SweepVerdict, verdict
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.results.conftest import finish, performance

LR, BETA = "training.learning_rate", "training.adam_beta2"
STEPS = 60
Curve = Sequence[float]
Answer = Callable[[str, str, dict[float, Curve]], SweepVerdict]


def falling(last: float) -> Curve:
    return tuple(last + 2 * (1 - step / STEPS) + 0.01 * (-1) ** step for step in range(1, STEPS + 1))


def rising(last: float) -> Curve:
    """Down to the middle, and up again by a tenth."""
    return tuple(last - 0.1 + 0.2 * abs(step / STEPS - 0.5) + 0.001 * (-1) ** step for step in range(1, STEPS + 1))


@pytest.fixture
def answer(tmp_path: Path, build_record: BuildRecord) -> Answer:
    """The answer of a sweep over one axis, each value of which left a curve."""

    def of(key: str, axis: str, curves: dict[float, Curve]) -> SweepVerdict:
        words = [f"training.num_steps={STEPS}", f"+sweep.axes={{{key}:{axis}}}"]
        record = build_record([{key: value} for value in curves], words).model_copy(update={"objective": ("loss",)})
        folder = SweepFolder(tmp_path / "sweep")
        for trial, curve in zip(record.trials, curves.values(), strict=True):
            finish(folder, trial, performance(100.0, losses=tuple(curve), final_loss=curve[-1]))
        return verdict(record, Sweep(folder, record).read())

    return of


@pytest.mark.parametrize(
    ("key", "axis", "values", "said"),
    [
        (LR, "[0.001,0.01,0.1]", [0.1, 0.01], f"The best {LR}, 0.1, is at the highest end of its axis: try 0.1 to 10"),
        (LR, "[0.001,0.01,0.1]", [0.01, 0.1, 0.001], ""),
        (LR, "[0.1,0.01,0.001]", [0.001, 0.1], f"The best {LR}, 0.001, is at the lowest end of its axis: try 1e-05 to"),
        (
            LR,
            "{low:1e-4,high:1e-2,log:true}",
            [0.0095, 1e-3],
            "is at the highest end of its axis: try 0.01 to 0.1 next",
        ),
        (LR, "{low:1e-4,high:1e-2,log:true}", [0.006, 1e-3], ""),
        (BETA, "[0.9,0.95,0.99]", [0.99, 0.95], "at the highest end of its axis: try 0.99 to 0.995 next"),
        ("training.dropout", "[0.0,0.1,0.2]", [0.0, 0.1], ""),
    ],
)
def test_a_best_value_at_the_end_of_its_axis_is_named_with_the_range_to_try_next(
    answer: Answer, key: str, axis: str, values: list[float], said: str
) -> None:
    details = " ".join(answer(key, axis, {value: falling(2.0 + 0.5 * at) for at, value in enumerate(values)}).details)
    assert said in details
    assert ("end of its axis" in details) is bool(said)


def test_losses_that_rise_at_the_end_are_marked_in_the_first_sentence(answer: Answer) -> None:
    curves = {0.1: rising(2.0), 0.01: falling(3.0), 0.001: rising(4.0)}
    headline = answer(LR, "[0.001,0.01,0.1]", curves).headline
    assert headline.startswith("lr=0.1, whose loss was rising at the end, reached the lowest loss")
    assert headline.endswith("of the 2 others; lr=1e-3 was rising at the end.")


def test_a_loss_that_falls_or_stays_is_not_called_rising(answer: Answer) -> None:
    noisy = tuple(3.0 + 0.05 * ((7919 * step) % 101 / 101 - 0.5) for step in range(STEPS))
    assert "rising" not in answer(LR, "[0.01,0.1]", {0.1: falling(2.0), 0.01: noisy}).headline
