"""What a search learned. Every measured number is MADE UP for the test, or replayed on a made-up machine."""

from __future__ import annotations

import pytest
import yaml

from results.report.sections.learned import search_plan, section
from sweeps.folder.journal import Asked, Finished, Journal
from sweeps.sweep import Sweep
from sweeps.trial import Trial
from tests.composed import composed
from tests.results.conftest import WriteSweep, finish, performance, trial
from tests.results.report.sections.conftest import drawn, plots_of, rows_of, shown_of, subject_of, text_of
from train_core.trial.measurement import Outcome, Performance

BASELINE = trial("base", is_baseline=True)
SECOND = trial("second", world_size=2, tensor_parallel_size=2).model_copy(
    update={"chosen_because": "predicted the best of 1,234 plans"}
)
THIRD = trial("third", world_size=2).model_copy(
    update={"chosen_because": "expected to better the best by 12.0%", "expected_gain": 0.12}
)
LOST = trial("lost", world_size=2, pipeline_parallel_size=2).model_copy(update={"expected_gain": 0.03})
HOW: dict[str, Performance | tuple[Outcome, str]] = {
    "base": performance(100.0),
    "second": performance(250.0, 2),
    "third": performance(300.0, 2),
    "lost": (Outcome.OUT_OF_MEMORY, "out of memory"),
}


def searched(write_sweep: WriteSweep, *overrides: str, finished: str = "") -> Sweep:
    """The baseline was listed, and the search asked for the others."""
    asked: tuple[Trial, ...] = (SECOND, THIRD, LOST)
    sweep = write_sweep((BASELINE, *asked), HOW)
    Journal(sweep.folder.journal).append(*(Asked(trial=each) for each in asked))
    if finished:
        Journal(sweep.folder.journal).append(Finished(because=finished))
    if overrides:
        place = sweep.folder.path / "provenance"
        place.mkdir()
        (place / "configuration.yaml").write_text(yaml.safe_dump({"search": composed(overrides).tree["search"]}))
    return sweep


def test_every_trial_that_was_asked_for_has_its_expected_and_its_found_gain(write_sweep: WriteSweep) -> None:
    """Rates per device are 100, 125 and 150: a quarter more, then a fifth."""
    found = shown_of(section, searched(write_sweep))
    rows = rows_of(found, "search-course")
    assert [(row["expected gain %"], row["found gain %"]) for row in rows] == [
        ("-", "+25.0"),
        ("+12.0", "+20.0"),
        ("+3.0", "-"),
    ]
    assert rows[0]["why it was asked for"] == "predicted the best of 1,234 plans"
    assert rows[2]["outcome"] == "out of memory"


def test_trials_of_another_configuration_are_no_part_of_the_course(write_sweep: WriteSweep) -> None:
    sweep = searched(write_sweep)
    before = SECOND.model_copy(update={"role": "kept", "selected": False})
    trials = tuple(before if each.trial_id == SECOND.trial_id else each for each in sweep.record.trials)
    found = shown_of(section, sweep._replace(record=sweep.record.model_copy(update={"trials": trials})))
    assert [row["found gain %"] for row in rows_of(found, "search-course")] == ["+50.0", "-"]
    assert found.finding.startswith("The search asked for 2 trials, 1 of which measured something.")
    assert [value["best so far"] for value in plots_of(found)[0].spec["data"]["values"]] == [0.1, 0.15]


def test_why_it_stopped_is_in_the_finding(write_sweep: WriteSweep) -> None:
    found = shown_of(section, searched(write_sweep, finished="all plans were tried"))
    assert found.finding == (
        "The search asked for 3 trials, 2 of which measured something. It stopped because all plans were tried."
    )


def test_a_search_that_goes_on_does_not_say_that_it_stopped(write_sweep: WriteSweep) -> None:
    found = shown_of(section, searched(write_sweep))
    assert "It has not said that it is finished." in found.finding


def test_the_sentences_are_those_that_the_search_says_at_its_end(write_sweep: WriteSweep) -> None:
    found = shown_of(section, searched(write_sweep, "sweep=175b", "search=bayes"))
    assert "Measured steps take " in text_of(found)
    (plot,) = plots_of(found)
    assert "measured model TFLOPS per device" in drawn(plot)


def test_a_repeat_is_no_seed_of_its_point(write_sweep: WriteSweep) -> None:
    sweep = searched(write_sweep, "sweep=175b", "search=bayes", "search.objective=loss")
    again = BASELINE.model_copy(update={"trial_id": "base-r2", "repeat": 1})
    for each in (BASELINE, again):
        finish(sweep.folder, each, performance(100.0, losses=(1.0,), final_loss=1.0))
    record = sweep.record.model_copy(update={"trials": (*sweep.record.trials, again)})
    found = shown_of(section, sweep._replace(record=record))
    assert "Best of 3 measured points: the baseline (loss 1 nats per token)." in text_of(found)


def test_a_search_for_several_objectives_draws_its_front(write_sweep: WriteSweep) -> None:
    sweep = searched(write_sweep, "sweep=175b", "search=pareto", "search.objective=[throughput,step_time]")
    found = shown_of(section, sweep)
    assert "measured points beats this one in throughput and step_time" in text_of(found)
    _, plot = plots_of(found)
    assert [value["which"] for value in plot.spec["data"]["values"]].count("on the front") == 1
    assert "on the front" in drawn(plot)


@pytest.mark.parametrize("content", ["", "search: 3", "search: {kind: sorcery}", "{", "[]"])
def test_a_configuration_that_cannot_be_read_leaves_the_rest(write_sweep: WriteSweep, content: str) -> None:
    sweep = searched(write_sweep, "sweep=175b", "search=bayes")
    (sweep.folder.path / "provenance" / "configuration.yaml").write_text(content)
    assert search_plan(sweep.folder) is None
    assert section(subject_of(sweep)) is not None


def test_a_sweep_of_listed_points_has_no_such_section(write_sweep: WriteSweep) -> None:
    assert section(subject_of(write_sweep((BASELINE,), HOW))) is None


def test_stages_that_follow_listed_points_are_no_search(write_sweep: WriteSweep) -> None:
    later = SECOND.model_copy(update={"stage": "longer", "after": "base"})
    sweep = write_sweep((BASELINE, later), HOW)
    Journal(sweep.folder.journal).append(Asked(trial=later))
    assert section(subject_of(sweep)) is None
