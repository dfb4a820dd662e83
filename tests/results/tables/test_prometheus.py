"""Gauges of sweeps, read with Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from results.tables.prometheus import SweepState, gauges_text
from sweeps.folder.journal import History
from sweeps.sweep import Sweep
from tests.results.conftest import WriteSweep, performance, trial, write_steps
from train_core.trial.measurement import Outcome

TRIALS = (trial("base", is_baseline=True), trial("two", world_size=2, tensor_parallel_size=2), trial("dead"))
HOW = {"base": performance(100.0), "dead": (Outcome.OUT_OF_MEMORY, "rank 1 ran out of memory")}


def values(sweep: Sweep, *, num_unreadable: int = 0) -> dict[tuple[str, ...], float]:
    """The value of each gauge, by its name and then its labels in the order of their names."""
    state = SweepState(sweep, sweep.read(), History())
    families = text_string_to_metric_families(gauges_text([state], num_unreadable=num_unreadable))
    samples = (sample for family in families for sample in family.samples)
    return {(each.name, *(each.labels[name] for name in sorted(each.labels))): each.value for each in samples}


def test_a_sweep_whose_trial_waits_has_not_ended(write_sweep: WriteSweep) -> None:
    found = values(write_sweep(TRIALS, HOW), num_unreadable=2)
    assert found["trisweep_trials", "COMPLETED", "made-up"] == 1
    assert found["trisweep_trials", "OUT_OF_MEMORY", "made-up"] == 1
    assert found["trisweep_trials", "PENDING", "made-up"] == 1
    assert found["trisweep_ended", "made-up"] == 0
    assert found["trisweep_best_tokens_per_second", "made-up", "base"] == 100.0
    assert found[("trisweep_unreadable_sweeps",)] == 2
    assert not any("trial_step" in name for name, *_ in found), "none runs"


def test_one_whose_trials_are_all_over_has_ended(write_sweep: WriteSweep) -> None:
    assert values(write_sweep((TRIALS[0], TRIALS[2]), HOW))["trisweep_ended", "made-up"] == 1


def test_a_trial_that_runs_has_gauges_of_its_own(write_sweep: WriteSweep) -> None:
    sweep = write_sweep(TRIALS, HOW)
    write_steps(sweep.folder, "two", [1, 2, 3])
    found = values(sweep)
    assert found["trisweep_trials", "RUNNING", "made-up"] == 1
    assert found["trisweep_trial_step", "made-up", "two"] == 3
    assert found["trisweep_trial_loss", "made-up", "two"] < 5
    assert ("trisweep_trial_step", "made-up", "base") not in found
