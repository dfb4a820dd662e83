"""The figures that docs/how-to/scaling-study.md predicts for Frontier are those of its studies today."""

from __future__ import annotations

import re

import pytest

from conf.compose.load import compose
from conf.overrides import Overrides
from sweeps.points.plan import plan_sweep
from tests.docs.documented import ROOT

PAGE = ROOT / "docs" / "how-to" / "scaling-study.md"


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_the_efficiency_in_the_page_is_the_one_that_is_predicted(scaling: str) -> None:
    record = plan_sweep(compose(Overrides.choosing("sweep", f"{scaling}-175b")), proxy=False, git_sha="")
    rates = {
        trial.experiment.parallel.world_size: trial.estimate.model_flops_per_second_per_device
        for trial in record.trials
        if trial.experiment and trial.estimate
    }
    predicted, *_ = re.findall(rf"([\d.]+) % {scaling}", PAGE.read_text().partition("Predicted for Frontier")[2])
    assert float(predicted) == pytest.approx(100 * rates[1024] / rates[128], abs=0.05)
