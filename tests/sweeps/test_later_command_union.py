"""Whatever a command asked for stays with its sweep when a later command makes other points of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from conf.compose.script_sweep import script_sweep
from conf.types.schema import Value
from launcher.control.composed_rules import rules_for
from sweeps.folder.journal import Asked, Begun, Journal
from sweeps.later_command import union
from sweeps.points.plan import plan_sweep, trial_of
from sweeps.reading import ASKED_EARLIER
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.composed import compose_tree, composed
from train_core.job.failures import without_numbers
from train_core.trial.measurement import Outcome, Performance


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "smoke-local")


def command(folder: SweepFolder, *overrides: str, sweep: str = "smoke") -> dict[str, Trial]:
    """What `trisweep sweep smoke` does with these overrides, up to the moment at which trials start."""
    asked = composed([f"sweep={sweep}", *overrides])
    planned = Sweep(folder, plan_sweep(asked, proxy=False, git_sha=""))
    rules = rules_for(asked, planned.record, on_slurm=False)
    record = union(planned, rules.draft, asks_later=rules.max_trials is not None)
    folder.path.mkdir(exist_ok=True)
    folder.write_record(record)
    Journal(folder.journal).append(Begun(overrides=overrides, on_slurm=False))
    return {trial.trial_id: trial for trial in record.trials}


def measure(folder: SweepFolder, number: int) -> str:
    """Leave a result of the trial of that number, and return its id."""
    trial = Sweep.stored_in(folder).runnable[number]
    assert trial.experiment is not None
    required = [name for name, field in Performance.model_fields.items() if field.is_required()]
    values: dict[str, Any] = dict.fromkeys(required, 1.0) | {
        **dict.fromkeys(("num_timed_steps", "num_devices", "num_parameters"), 1),
        **dict.fromkeys(("flops_formula", "peak_source"), "made up for the test"),
        **{"peak_memory_bytes": (1,), "losses": (1.0,)},
    }
    ended = without_numbers(trial.experiment.fingerprint, Outcome.COMPLETED, "", time.time())
    files = folder.trial(trial.trial_id)
    files.path.mkdir(parents=True)
    files.write_measurement(ended.model_copy(update={"performance": Performance(**values)}))
    return trial.trial_id


def shown(folder: SweepFolder) -> list[str]:
    return [each.name for each in Sweep.stored_in(folder).read() if each.performance]


def test_what_was_measured_stays_whatever_the_later_command_plans(folder: SweepFolder) -> None:
    command(folder)
    first = measure(folder, 1)
    assert command(folder, "batch.micro_batch_size=4")[first].role == "observed"
    second = measure(folder, 0)
    assert shown(folder) == [second, first]
    assert command(folder)[second].role == "observed"
    assert sorted(shown(folder)) == sorted([second, first])
    assert sum(trial.is_baseline for trial in Sweep.stored_in(folder).record.trials) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("search", ["bayes", "random", "pareto", "planner"])
def test_a_search_after_the_grid_keeps_its_points_with_their_names_and_roles(folder: SweepFolder, search: str) -> None:
    grid = command(folder)
    first = measure(folder, 1)
    after = command(folder, f"search={search}", "sweep.max_trials=4")
    assert set(grid) <= set(after)
    assert shown(folder) == [first]
    assert all(trial.role == "asked" or not trial.selected for trial in after.values())
    assert after[first].asked_by == ""


def test_what_differs_in_more_than_its_layout_is_shown_and_not_observed(folder: SweepFolder) -> None:
    command(folder)
    first = measure(folder, 1)
    assert command(folder, "training.num_steps=9")[first].role == "kept"
    assert shown(folder) == [first]
    assert command(folder)[first].role == "asked"


def test_a_name_of_a_command_that_had_one_value_may_have_several_later(folder: SweepFolder) -> None:
    def script(values: str) -> dict[str, Trial]:
        asked = script_sweep("python fit.py --lr {lr}", [values]).overrides(["search.objective=[loss]"], None)
        first, *overrides = asked.texts
        return command(folder, *overrides, sweep=first.removeprefix("sweep="))

    (one,) = script("lr=1e-3")
    measure(folder, 0)
    later = script("lr=1e-2,1e-1")
    assert (len(later), later[one].role) == (3, "kept")
    assert shown(folder) == [one]


def test_an_observed_trial_says_what_its_own_command_left_unsaid(folder: SweepFolder) -> None:
    command(folder)
    first = measure(folder, 1)
    observed = command(folder, "batch.micro_batch_size=4")[first]
    assert observed.point["batch.micro_batch_size"] == 1


def test_what_an_earlier_command_asked_for_and_never_measured_is_no_longer_to_be_run(folder: SweepFolder) -> None:
    command(folder)
    command(folder, "training.num_steps=9")
    causes = {each.cause for each in Sweep.stored_in(folder).read() if each.trial.role == "kept"}
    assert causes == {ASKED_EARLIER}
    command(folder)
    assert [each.outcome for each in Sweep.stored_in(folder).read() if each.trial.role == "asked"].count(None) == 0


def test_a_search_goes_on_with_what_the_same_command_asked_for_before(folder: SweepFolder) -> None:
    words = ("search=random", "sweep.max_trials=4")
    command(folder, *words)
    point: dict[str, Value] = {"parallel.zero_stage": 1, "batch.micro_batch_size": 1}
    by_search = trial_of(compose_tree(["sweep=smoke"]), point, "drawn").model_copy(update={"asked_by": "search=random"})
    Journal(folder.journal).append(Asked(trial=by_search))
    assert command(folder, *words)[by_search.trial_id].role == "asked"
    assert command(folder, "search=planner")[by_search.trial_id].role != "asked"
    goes_further = ("search.max_rounds=5", "search.max_concurrent_trials=8", "search.min_gain=0.1", *reversed(words))
    for same in (words, goes_further):
        again = command(folder, *same)[by_search.trial_id]
        assert (again.role, again.selected) == ("asked", True)
    assert command(folder, *words, "search.seed=3")[by_search.trial_id].role == "observed"


def test_the_same_command_again_changes_nothing_in_the_record(folder: SweepFolder) -> None:
    command(folder)
    before = folder.read_record()
    command(folder)
    assert folder.read_record() == before


def test_seeds_whose_fingerprints_begin_alike_are_trials_of_their_own(folder: SweepFolder) -> None:
    seeds = "sweep.axes={training.seed: [314, 7573, 7]}"
    trials = [trial for trial in command(folder, seeds).values() if "training.seed" in trial.point]
    assert {trial.point["training.seed"] for trial in trials} == {7, 314, 7573}
