"""`trisweep status` of more trials than anybody reads line by line."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cli.output import status_table
from sweeps.folder.journal import ALL_TRIED, Begun, Finished, Journal
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.results.conftest import finish, performance
from train_core.trial.measurement import Outcome


@pytest.mark.parametrize(
    ("is_cancelled", "how", "counts"),
    [(False, "only wait", "3 PENDING"), (True, "never began, as the sweep was cancelled", "3 CANCELLED")],
)
@pytest.mark.parametrize(("most_rows", "is_listed"), [(2, False), (3, True)])
def test_of_very_many_trials_those_that_never_began_are_counted(
    build_record: BuildRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most_rows: int,
    is_listed: bool,
    is_cancelled: bool,
    how: str,
    counts: str,
) -> None:
    monkeypatch.setattr(status_table, "MOST_ROWS", most_rows)
    record = build_record([{"training.seed": seed} for seed in range(3)], [])
    trials = tuple(trial.model_copy(update={"selected": True}) for trial in record.trials)
    readings = Sweep(SweepFolder(tmp_path), record.model_copy(update={"trials": trials}), is_cancelled).read()
    file = StringIO()
    Console(width=100, file=file).print(status_table.status_table(readings, 100))
    listed = file.getvalue().partition("\n\n")[0]
    assert ("seed=2" in listed) is is_listed
    assert (f"Not listed: 3 trials that {how};" in file.getvalue()) is not is_listed
    assert counts in file.getvalue()


def test_of_very_many_trials_that_ran_the_best_and_those_that_failed_are_listed(
    build_record: BuildRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_table, "MOST_ROWS", 4)
    folder, record = SweepFolder(tmp_path), build_record([{"training.seed": seed} for seed in range(9)], [])
    for number, trial in enumerate(record.trials):
        rate = 100.0 + 100.0 * (number == 5)
        finish(folder, trial, (Outcome.FAILED, "no such program") if number == 7 else performance(rate))
    file = StringIO()
    Console(width=100, file=file).print(status_table.status_table(Sweep(folder, record).read(), 100))
    table, _, below = file.getvalue().partition("\n\n")
    assert "seed=5" in table
    assert "seed=7" in table
    assert table.count("seed=") == 4
    assert "Not listed: 5 trials that the table has no room for; `trisweep status --json` lists all." in table
    assert "cause     no such program" in below
    assert "8 COMPLETED, 1 FAILED" in below


def test_a_cause_that_many_trials_share_is_told_once(build_record: BuildRecord, tmp_path: Path) -> None:
    folder, record = SweepFolder(tmp_path), build_record([{"training.seed": seed} for seed in range(9)], [])
    for number, trial in enumerate(record.trials):
        finish(folder, trial, (Outcome.FAILED, "another cause" if number == 4 else "no such program"))
        log = folder.trial(trial.trial_id).rank_log(0)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"loss of seed {number}")  # the last lines of trials that ended alike differ
    file = StringIO()
    Console(width=200, file=file).print(status_table.status_table(Sweep(folder, record).read(), 100))
    said = " ".join(file.getvalue().split())
    assert said.count("cause no such program") == said.count("cause another cause") == 1
    assert "likewise seed=1, seed=2, seed=3, seed=5, seed=6 and 2 more" in said


@pytest.mark.parametrize(
    ("role", "why"),
    [("asked", "beyond sweep.max_trials"), ("kept", "an earlier command asked for it, and has not measured it")],
)
def test_trials_that_are_left_out_are_named_with_the_reason(
    build_record: BuildRecord, tmp_path: Path, role: str, why: str
) -> None:
    record = build_record([{"training.seed": seed} for seed in range(7)], [])
    trials = tuple(trial.model_copy(update={"selected": False, "role": role}) for trial in record.trials)
    readings = Sweep(SweepFolder(tmp_path), record.model_copy(update={"trials": trials})).read()
    file = StringIO()
    Console(width=200, file=file).print(status_table.status_table(readings, 100))
    said = " ".join(file.getvalue().split())
    assert f"7 left out Left out ({why}): seed=0, seed=1, seed=2, seed=3, seed=4 and 2 more." in said


LATE = "budget.deadline_hours = 1 leaves 5 minutes, and the next trial could take longer"


@pytest.mark.parametrize(
    ("because", "is_left", "is_said"), [(LATE, True, True), (LATE, False, False), (ALL_TRIED, True, False)]
)
def test_a_limit_that_left_trials_is_said(
    build_record: BuildRecord, tmp_path: Path, because: str, is_left: bool, is_said: bool
) -> None:
    record = build_record([{}], [])
    trials = tuple(trial.model_copy(update={"selected": is_left}) for trial in record.trials)
    sweep = Sweep(SweepFolder(tmp_path), record.model_copy(update={"trials": trials}))
    Journal(sweep.folder.journal).append(Begun(overrides=(), on_slurm=False), Finished(because=because))
    assert status_table.state_lines(sweep, sweep.read()) == ([f"Ended: {because}."] if is_said else [])
