"""What cannot exist is refused with its key, its value and a remedy."""

from __future__ import annotations

import pytest

from conf.compose.load import load
from conf.errors import InfeasiblePlan


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["training.compile_layers=true", "training.dropout=0.1"],
            r"training\.compile_layers = True: would compile anew .* Set training\.compile_layers=false",
        ),
        (
            ["training.compile_layers=true", "parallel.recompute=pointwise"],
            r"training\.compile_layers = True: traces away .* Set training\.compile_layers=false",
        ),
        (
            ["parallel.zero_stage=3", "watch.compare_replicas_every=10"],
            r"watch\.compare_replicas_every = 10: finds no replicas .* Use null",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(overrides: list[str], message: str) -> None:
    settings = load(overrides)
    with pytest.raises(InfeasiblePlan, match=message):
        settings.experiment()


def test_a_copy_with_other_values_has_a_fingerprint_of_its_own() -> None:
    experiment = load().experiment()
    known = experiment.fingerprint
    training = experiment.training.model_copy(update={"seed": experiment.training.seed + 1})
    assert experiment.model_copy(update={"training": training}).fingerprint != known
    assert experiment.fingerprint == known
