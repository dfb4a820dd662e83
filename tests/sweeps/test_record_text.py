"""What `sweep.json` takes for a trial, and that it says all of it."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import sweeps.trial
from conf.errors import InfeasiblePlan, UsageError
from conf.plan import experiment as experiments_of
from conf.plan.experiment import Experiment
from sweeps.trial import SweepFolder, record_of, text_of
from tests.conftest import BuildRecord
from tests.messages import refused
from tests.results.conftest import finish, performance, trial

MOST_BYTES_PER_TRIAL = 2000
MOST_MEMORY_PER_TRIAL, MOST_MEMORY_PER_MEASUREMENT = 3000, 4000
"""Bytes of what is kept of a trial when it was read; about half would be sets of the names of the fields given."""


def test_a_record_is_read_as_it_was_written_and_its_trials_share_what_is_equal(build_record: BuildRecord) -> None:
    record = build_record([{"training.seed": seed} for seed in range(3)], ["cluster=frontier"])
    plan = build_record([{"parallel.pipeline_parallel_size": 2}], ["cluster=frontier"]).trials
    record = record.model_copy(update={"plan": plan})
    read = record_of(text_of(record))
    assert read == record
    assert [trial.identity for trial in read.trials] == [trial.identity for trial in record.trials]
    experiments = [trial.experiment for trial in read.trials if trial.experiment]
    assert len({id(experiment.model) for experiment in experiments}) == 1
    assert len({id(trial.estimate) for trial in read.trials}) == 1


def test_planned_trials_share_what_is_equal(build_record: BuildRecord) -> None:
    """Ten thousand that differ in their seed are to take no more memory than that."""
    trials = build_record([{"training.seed": seed} for seed in range(3)], []).trials
    experiments = [trial.planned for trial in trials]
    assert len({id(getattr(each, name)) for each in experiments for name in ("model", "cluster", "parallel")}) == 3
    assert len({id(trial.estimate) for trial in trials}) == 1
    assert len({id(each.training) for each in experiments}) == 3


def test_what_is_not_finite_stays_so(build_record: BuildRecord) -> None:
    record = build_record([{}], [])
    trial = record.trials[0].model_copy(update={"expected_gain": math.inf})
    read = record_of(text_of(record.model_copy(update={"trials": (trial,)})))
    assert read.trials[0].expected_gain == math.inf


def test_a_trial_that_differs_in_its_seed_takes_a_fraction_of_its_experiment(build_record: BuildRecord) -> None:
    record = build_record([{"training.seed": seed} for seed in range(200)], ["cluster=frontier"])
    text, num_trials = text_of(record), len(record.trials)
    assert len(text) / num_trials < MOST_BYTES_PER_TRIAL
    assert _bytes_of(lambda: record_of(text)) / num_trials < MOST_MEMORY_PER_TRIAL


def test_thousands_of_measurements_share_the_names_of_their_fields(tmp_path: Path) -> None:
    folder, base = SweepFolder(tmp_path), trial("base")
    finish(folder, base, performance(100.0))
    files = folder.trial(base.trial_id)
    assert _bytes_of(lambda: [files.read_measurement() for _ in range(100)]) / 100 < MOST_MEMORY_PER_MEASUREMENT


def test_a_changed_copy_leaves_the_others_the_fields_that_were_given(build_record: BuildRecord) -> None:
    read = record_of(text_of(build_record([{"training.seed": seed} for seed in range(2)], [])))
    first, second = read.trials
    given = set(second.model_fields_set)
    changed = first.model_copy(update={"expected_gain": 1.0})
    assert "expected_gain" in changed.model_fields_set
    assert second.model_fields_set == given


def _bytes_of(make: Callable[[], object]) -> int:
    """The memory of what a call returns, beside what its first call leaves for good."""
    make()
    tracemalloc.start()
    try:
        kept = make()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        assert kept is not None
        return taken
    finally:
        tracemalloc.stop()


def test_a_record_whose_store_no_command_would_take_any_more_is_read(build_record: BuildRecord) -> None:
    record = build_record([{}], [])
    tracking = record.tracking.model_copy(update={"experiment": ""})
    assert record_of(text_of(record.model_copy(update={"tracking": tracking}))).tracking == tracking


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ('"parts": [', '"parts": [[], '),
        ('"parts": [', '"parts": [{"model": {}}, '),
        ('"experiment":', '"experiment":99'),
        ('"trial_id"', '"of"'),
        ('"mode"', '"manner"'),
        ("{", "["),
    ],
)
def test_a_damaged_record_is_one_message(build_record: BuildRecord, tmp_path: Path, part: str, other: str) -> None:
    folder = SweepFolder(tmp_path)
    folder.record.write_text(text_of(build_record([{}], [])).replace(part, other, 1))
    with refused(UsageError, "sweep.json"):
        folder.read_record()


def test_a_record_is_taken_apart_once_until_its_file_changes(
    build_record: BuildRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps.trial, "TICK_NS", 0)
    record, folder = build_record([{}], []), SweepFolder(tmp_path)
    folder.write_record(record)
    first = folder.read_record()
    assert SweepFolder(tmp_path).read_record() is first
    folder.write_record(record.model_copy(update={"created": record.created + 1}))
    assert folder.read_record().created == record.created + 1


def test_a_record_that_was_written_a_moment_ago_is_read_anew(build_record: BuildRecord, tmp_path: Path) -> None:
    """Another change within one tick of the file system's clock would not show in its times."""
    folder = SweepFolder(tmp_path)
    folder.write_record(build_record([{}], []))
    first = folder.read_record()
    assert folder.read_record() is not first


def test_what_was_measured_is_read_though_a_later_version_would_refuse_the_plan(
    build_record: BuildRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(experiment: Experiment) -> None:
        raise InfeasiblePlan("parallel.world_size", 1, "is too small", "Use more.")

    text = text_of(build_record([{}], []))
    monkeypatch.setattr(experiments_of, "OWN_RUN_CHECKS", (refuse,))
    assert record_of(text).trials[0].experiment is not None
