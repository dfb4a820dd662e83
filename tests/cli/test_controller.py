"""The job that goes on with a sweep, from its inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import controller
from cli.commands.control import retry
from launcher.control.orders import retry_failed_trials
from sweeps.folder.journal import Begun, Cancelled, Journal, Paused
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.launcher.control.at_once import AtOnce
from tests.launcher.test_run_here import make_job
from tests.results.conftest import finish
from train_core.trial.measurement import Outcome


def test_an_order_that_comes_while_the_report_is_written_is_carried_out_by_the_same_job(
    tmp_path: Path, build_record: BuildRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SweepFolder(tmp_path / "smoke-local")
    record = build_record([{"training.seed": 1}], [])
    folder.write_record(record)
    Journal(folder.journal).append(Begun(overrides=("sweep=smoke", "tracking.live_seconds=null"), on_slurm=False))
    finish(folder, record.trials[0], (Outcome.FAILED, "it broke"))
    reported: list[Outcome | None] = []

    def report(sweep: Sweep, tracking: object) -> None:
        reported.extend(each.outcome for each in sweep.read())
        retry_failed_trials(sweep)

    monkeypatch.setattr(controller, "own_submission", lambda folder: "its own")
    monkeypatch.setattr(controller, "report_at_the_end", report)
    monkeypatch.setattr("launcher.slurm.controller._workplace_of", lambda *given: AtOnce(make_job()))
    controller.run_in_slurm(str(folder.controller.path))
    assert reported == [Outcome.FAILED, Outcome.COMPLETED]


@pytest.mark.parametrize(
    ("order", "why"),
    [(Cancelled(trial_id=None), "it was cancelled"), (Paused(), "it is paused")],
    ids=["cancel", "pause"],
)
def test_a_retry_that_submits_nothing_says_why(
    order: Cancelled | Paused,
    why: str,
    tmp_path: Path,
    build_record: BuildRecord,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = SweepFolder(tmp_path / "test-local")
    record = build_record([{"training.seed": 1}], [])
    folder.write_record(record)
    Journal(folder.journal).append(Begun(overrides=("sweep=smoke",), on_slurm=True), order)
    finish(folder, record.trials[0], (Outcome.FAILED, "it broke"))
    monkeypatch.setattr("cli.commands.control.started_sweep", lambda name, overrides: (folder, None))
    retry("test", failed=True)
    assert f"1 trial to run again; 0 jobs submitted: {why}." in capsys.readouterr().out


@pytest.mark.parametrize("num_asked", [1, 0])
def test_a_retry_of_what_failed_leaves_alone_what_the_last_command_did_not_ask_for(
    num_asked: int,
    tmp_path: Path,
    build_record: BuildRecord,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = SweepFolder(tmp_path / "test-local")
    record = build_record([{"training.seed": 1}, {"training.seed": 2}, {"training.seed": 3}], [])
    states = ({"selected": number < num_asked} for number in range(3))
    trials = [each.model_copy(update=state) for each, state in zip(record.trials, states, strict=True)]
    folder.write_record(record.model_copy(update={"trials": tuple(trials)}))
    Journal(folder.journal).append(Begun(overrides=("sweep=smoke",), on_slurm=True), Paused())
    for each in trials:
        finish(folder, each, (Outcome.FAILED, "it broke"))
    monkeypatch.setattr("cli.commands.control.started_sweep", lambda name, overrides: (folder, None))
    retry("test", failed=True)
    said = " ".join(capsys.readouterr().out.split())
    expected = "1 trial to run again" if num_asked else "No trial of the last command has failed."
    assert expected in said
    one = "`trisweep retry test --trial ID "
    assert f"{3 - num_asked} failed trials of earlier commands left alone; {one}" in said
