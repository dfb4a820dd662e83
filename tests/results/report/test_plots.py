"""The plots of a report, as the values that the page draws."""

from __future__ import annotations

from results.report.plots import TERM_NAMES, predicted_step_terms
from tests.results.report.test_report import PLAN
from train_core.costs import STEP_TERMS


def test_the_legend_names_every_term_of_a_predicted_step_in_words() -> None:
    figure = predicted_step_terms([trial for trial in PLAN if trial.infeasible_reason is None])
    assert figure is not None
    names = [bar["name"] for bar in figure["data"]]
    assert names == [TERM_NAMES[term] for term in STEP_TERMS]
    assert "slowest device" in names
    assert not any("_" in name for name in names)
