"""The section on which knob mattered: what it shows of a sweep, and when it stays away."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from results.render.section import Heading, NamedTable, Plot
from results.report.sections.knobs import section
from sweeps.sweep import Sweep
from tests.results.conftest import FULL, WriteSweep, performance, trial
from tests.results.report.sections.conftest import shown_of, subject_of, table_of, text_of
from train_core.trial.measurement import Outcome

SIZES = list(product((1, 2, 4), (1, 2), (1, 2, 4)))


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """How sure a share is is tested with the shares; here a few draws do, and take an eighth of the time."""
    monkeypatch.setattr("results.analysis.knobs.sensitivity.NUM_DRAWS", 5)


@pytest.fixture
def study(write_sweep: WriteSweep) -> Sweep:
    """A sweep that bears the study's name: micro-batches of 4 are twice as fast as 1, and some run out of memory."""
    trials, how = [], {}
    for micro, tensor, pipeline in SIZES:
        name = f"t{tensor}-p{pipeline}-m{micro}"
        size = 4 * tensor * pipeline
        sizes: dict[str, Any] = {
            "tensor_parallel_size": tensor,
            "pipeline_parallel_size": pipeline,
            "micro_batch_size": micro,
        }
        trials.append(trial(name, world_size=size, global_batch_size=64, model=FULL, **sizes))
        rate = 100.0 * micro**0.5 * (1 - 0.05 * tensor) * size
        is_out = micro == 4 and tensor == pipeline == 1
        how[name] = (Outcome.OUT_OF_MEMORY, "no memory") if is_out else performance(rate, size)
    return write_sweep(trials, how, mode="cluster", name="frontier-study")


@pytest.mark.slow
def test_a_study_shows_its_finding_its_tables_and_the_published_order(study: Sweep) -> None:
    found = shown_of(section, study)
    assert found.finding.startswith("Micro-batch size mattered most in 17 measured trials: micro-batch size 4 is")
    assert found.numbers_are == "measured and predicted"
    assert [block.text for block in found.blocks if isinstance(block, Heading)] == [
        "In the trials that were measured",
        "In the points that are predicted",
        "Around the best plan, on paper",
        "The order that the study found",
    ]
    order = table_of(found, "knobs-published")
    assert order.columns[:3] == ("knob", "published place", "measured, by rate")
    assert [cell.text for cell in order.rows[0][:3]] == ["micro-batch size", "1", "1"]
    assert [cell.text for cell in order.rows[-1][:3]] == ["ZeRO stage", "4", "-"]
    assert "It is recalled, and was not confirmed" in text_of(found)


def test_measured_and_predicted_rates_never_stand_in_one_table_or_plot(study: Sweep) -> None:
    names = [block.name for block in shown_of(section, study).blocks if isinstance(block, NamedTable | Plot)]
    assert len(names) == len(set(names))
    kinds = [name.rsplit("-", 1)[-1] for name in names if name not in ("knobs-neighbours", "knobs-published")]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"measured", "predicted"}


def test_trials_that_ran_out_of_memory_are_counted_by_value(study: Sweep) -> None:
    rows = [[cell.text for cell in row] for row in table_of(shown_of(section, study), "knobs-memory-measured").rows]
    assert ["micro-batch size", "4", "6", "1", "16.7"] in rows


def test_a_sweep_of_a_few_trials_has_no_such_section(write_sweep: WriteSweep) -> None:
    trials = [trial("base"), trial("two", world_size=2, tensor_parallel_size=2)]
    sweep = write_sweep(trials, {"base": performance(1.0), "two": performance(2.0, 2)})
    assert section(subject_of(sweep)) is None


def test_a_sweep_with_too_few_trials_to_tell_says_so(write_sweep: WriteSweep) -> None:
    trials = [
        trial(f"t{tensor}-p{pipeline}", world_size=8, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
        for tensor in (1, 2, 4)
        for pipeline in (1, 2)
    ]
    sweep = write_sweep(trials, {each.trial_id: performance(100.0, 8) for each in trials})
    found = shown_of(section, sweep)
    assert found.finding == (
        "The trials do not tell: 6 trials with a rate are too few for 2 knobs: at least 12 are needed."
    )
    assert not [block for block in found.blocks if isinstance(block, NamedTable)]
