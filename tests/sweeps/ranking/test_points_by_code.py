"""Points are told apart by the code that measured them."""

from __future__ import annotations

from pathlib import Path

from sweeps.ranking.points import measured_points, sought_points
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.results.conftest import CREATED, ENVIRONMENT, finish, performance


def test_points_of_several_seeds_that_the_code_tells_apart_are_called_by_no_seed(
    tmp_path: Path, build_record: BuildRecord
) -> None:
    lr, seed = "training.learning_rate", "training.seed"
    record = build_record([{lr: each, seed: number} for each in (0.1, 0.2) for number in (1, 2)], [])
    record = record.model_copy(update={"objective": ("loss",)})
    folder = SweepFolder(tmp_path / "sweep")
    for number, (trial, code) in enumerate(zip(record.trials, ("old1", "new1", "new1", "new1"), strict=True)):
        measured = performance(100.0, losses=(number + 1.0,), final_loss=number + 1.0)
        by = ENVIRONMENT.model_copy(update={"trainer_code": code})
        finish(folder, trial, measured, started=CREATED + number, environment=by)
    points = sought_points(record, Sweep(folder, record).read())
    assert [(point.name, len(point.runs)) for point in points] == [
        ("lr=0.1 (code old1)", 1),
        ("lr=0.1", 1),
        ("lr=0.2", 2),
    ]


def test_what_another_version_of_the_code_measured_is_another_point(tmp_path: Path, build_record: BuildRecord) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    first = build_record([{}], []).trials[0]
    again = first.model_copy(update={"trial_id": f"{first.trial_id}-r2", "repeat": 1})
    record = build_record([{}], []).model_copy(update={"trials": (first, again)})
    for trial, code, rate in ((first, "0ld0ld0ld0ld", 50.0), (again, "newnewnewnew", 100.0)):
        finish(folder, trial, performance(rate))
        files = folder.trial(trial.trial_id)
        measured = files.read_measurement()
        assert measured is not None
        by = ENVIRONMENT.model_copy(update={"trainer_code": code})
        started = measured.started + trial.repeat
        files.write_measurement(measured.model_copy(update={"environment": by, "started": started}))
    readings = Sweep(folder, record).read()
    points = measured_points(readings)
    assert [len(point.runs) for point in points] == [1, 1]
    assert [point.name for point in points] == ["tp1-pp1-dp1-mb1-gb8", "tp1-pp1-dp1-mb1-gb8 (code 0ld0)"]
    sought = sought_points(record.model_copy(update={"objective": ("step_time",)}), readings)
    assert [(point.name, len(point.runs)) for point in sought] == [
        ("tp1-pp1-dp1-mb1-gb8", 1),
        ("tp1-pp1-dp1-mb1-gb8 (code 0ld0)", 1),
    ]
