"""The trial that a person means by a part of its name, in every command alike."""

from __future__ import annotations

from pathlib import Path

from conf.errors import UsageError
from conf.types.schema import Value
from sweeps.log_choice import reading_called
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.messages import refused

TWO: dict[str, Value] = {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2}


def test_a_trial_is_known_by_enough_of_its_name(tmp_path: Path, build_record: BuildRecord) -> None:
    readings = Sweep(SweepFolder(tmp_path), build_record([{}, TWO, TWO | {"batch.micro_batch_size": 2}], [])).read()
    first, second, third = readings
    assert reading_called(readings, first.name) is first
    assert reading_called(readings, first.title) is first
    assert reading_called(readings, "tp1") is first
    assert reading_called(readings, "mb2") is third
    with refused(UsageError, second.name):
        reading_called(readings, "tp2")
    with refused(UsageError, first.name):
        reading_called(readings, "tp3-pp1")
    with refused(UsageError):
        reading_called([], "tp1")


def test_the_beginning_of_a_name_counts_more_than_what_another_holds(tmp_path: Path, build_record: BuildRecord) -> None:
    record = build_record([{}, TWO], [])
    first, second = record.trials
    trials = (first.model_copy(update={"trial_id": f"x-{second.trial_id}"}), second)
    readings = Sweep(SweepFolder(tmp_path), record.model_copy(update={"trials": trials})).read()
    assert reading_called(readings, "tp2") is readings[1]
