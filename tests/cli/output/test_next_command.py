"""Commands that are printed to be copied, and how a sweep's command ends."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast
from unittest.mock import MagicMock, Mock

import pytest
import typer

from cli.commands.sweep import run, sweep_run
from cli.commands.sweep.sweep_run import SweepRun, end_command
from cli.output.next_command import begun_command, command_by_name, folder_words, next_command, same_command, ui_command
from cli.output.progress import ends_in_words, is_troubled
from conf.compose.load import compose
from conf.errors import EXIT_FAILED
from conf.overrides import Overrides
from launcher.command_trainer.performance import program_code
from launcher.control.orders import SweepOrders
from launcher.control.rules import Budget, Rules
from launcher.where import SweepPlace
from sweeps.folder.journal import Begun, Finished, Journal
from sweeps.folder.submission import Submission, shape_of, write_submission
from sweeps.reading import CANCELLED_BY_NAME
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.composed import composed
from tests.results.analysis.test_scaling import Measured, result
from tests.results.conftest import ENVIRONMENT, SQLITE, WriteSweep, performance, trial, write_sweep
from tests.results.report.test_report import HOW, PROXY_TRIALS
from train_core.trial.measurement import Outcome

__all__ = ["write_sweep"]

FAILED = {trial.trial_id: (Outcome.FAILED, "rank 0 ran out of luck") for trial in PROXY_TRIALS if trial.experiment}


@pytest.fixture(autouse=True)
def no_make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MAKELEVEL", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_folder_that_everybody_uses_is_not_named(tmp_path: Path) -> None:
    assert folder_words(tmp_path / "runs") == []
    assert ui_command(tmp_path / "runs", SQLITE) == "trisweep ui"


@pytest.mark.parametrize("name", ["results", "my results", "é(1)=2", "it's", "2024", "1e5", "null", "a\\b (c)"])
def test_a_folder_that_was_chosen_is_named_so_that_shell_and_hydra_read_it_back(name: str, tmp_path: Path) -> None:
    words = shlex.split(ui_command(tmp_path / name, SQLITE))[2:]
    assert compose(Overrides.parse(words)).settings.output_dir == name


def test_who_came_by_make_is_told_a_target_of_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKELEVEL", "1")
    assert ui_command(tmp_path / "runs", SQLITE) == "make ui"
    assert ui_command(tmp_path / "elsewhere", SQLITE) == "make ui OVERRIDES=output_dir=elsewhere"


@pytest.mark.parametrize(
    ("kind", "uri", "kept"),
    [
        ("server", "https://ada:secret@runs.example", "https://runs.example"),
        ("database", "postgresql://ada@db/runs?sslmode=require", "postgresql://db/runs?sslmode=require"),
    ],
)
def test_a_store_that_is_not_in_the_folder_is_named_without_its_password(
    tmp_path: Path, kind: Literal["server", "database"], uri: str, kept: str
) -> None:
    tracking = SQLITE.model_copy(update={"kind": kind, "uri": uri})
    words = shlex.split(ui_command(tmp_path / "runs", tracking))[2:]
    composed_again = compose(Overrides.parse(words)).settings.tracking
    assert (composed_again.kind, composed_again.uri) == (kind, kept)


def test_a_sweep_on_a_cluster_is_named_with_it(write_sweep: WriteSweep) -> None:
    sweep = write_sweep(PROXY_TRIALS, mode="cluster", name="many-frontier")
    record = sweep.record.model_copy(update={"name": "many"})
    command = next_command("retry", type(sweep)(sweep.folder, record), "--failed")
    assert command == "trisweep retry many --failed cluster=frontier"


def test_the_same_command_has_all_that_the_one_before_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without values of the sweep it would measure other points, and without a person's own folders find no sweep."""
    monkeypatch.setattr("conf.folders._given", (tmp_path / "mine",))
    given = Overrides.parse(["sweep=fit", "cluster=frontier", "sweep.max_trials=3"])
    command = same_command("sweep", "fit", given, "--dry-run")
    assert command == "trisweep sweep fit cluster=frontier sweep.max_trials=3 --dry-run --config-dir mine"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), " cluster=frontier output_dir=runs/mine"),
        (("cluster=frontier", "output_dir=runs/mine"), " cluster=frontier output_dir=runs/mine"),
    ],
    ids=["by its folder", "by its name"],
)
def test_a_sweep_is_carried_out_by_its_name_however_it_was_named(
    write_sweep: WriteSweep, tmp_path: Path, given: tuple[str, ...], words: str
) -> None:
    sweep = write_sweep(PROXY_TRIALS, mode="cluster")
    record = sweep.record.model_copy(update={"name": "many", "overrides": ("cluster=frontier",)})
    named = Sweep(SweepFolder(tmp_path / "runs" / "mine" / "many-frontier"), record)
    assert command_by_name(named, Overrides.parse(given), "sweep") == f"trisweep sweep many{words}"


@pytest.mark.parametrize(
    ("given", "on_slurm", "words"),
    [
        (
            ("sweep=many", "cluster=frontier", "search=random", "output_dir=x", "sweep.max_trials=3"),
            True,
            "cluster=frontier search=random sweep.max_trials=3 --config-dir mine",
        ),
        (("sweep=many", "training.seed=2"), False, "training.seed=2 --here --config-dir mine"),
        (("sweep=many", "cluster=frontier"), False, "cluster=frontier --here --config-dir mine"),
        (("sweep=many", "cluster=frontier", "+slurm.environment.MY_KEY=***"), True, None),
    ],
    ids=["on a cluster", "here, of a file that names a cluster", "here, for a cluster", "with a hidden value"],
)
def test_a_sweep_that_goes_on_does_so_with_all_that_its_command_was_given(
    write_sweep: WriteSweep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    on_slurm: bool,
    words: str | None,
) -> None:
    monkeypatch.setattr("launcher.where.slurm_answers", lambda: False)
    sweep = write_sweep(PROXY_TRIALS, mode="cluster")
    named = Sweep(SweepFolder(tmp_path / "runs" / "many-frontier"), sweep.record.model_copy(update={"name": "many"}))
    journal, mine = Journal(named.folder.journal), str(tmp_path / "mine")
    journal.append(
        Begun(overrides=("sweep=many", "cluster=frontier"), on_slurm=True),
        Begun(overrides=given, on_slurm=on_slurm, config_dirs=(mine,)),
    )
    assert begun_command(named) == (words and f"trisweep sweep many {words}")
    # Where the present command was given the folders too, they are named once.
    monkeypatch.setattr("cli.output.next_command.own_folders", lambda: (tmp_path / "mine",))
    monkeypatch.setattr("conf.folders._given", (tmp_path / "mine",))
    assert begun_command(named) == (words and f"trisweep sweep many {words}")


def test_a_sweep_that_nobody_has_begun_has_no_command_to_go_on_with(write_sweep: WriteSweep) -> None:
    assert begun_command(write_sweep(PROXY_TRIALS)) is None


def test_where_nothing_is_left_to_do_completed_stages_are_not_called_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = result(trial("first"), performance(100.0))
    assert isinstance(measured, Measured)
    assert measured.measurement is not None
    ended = {
        outcome: replace(
            measured,
            trial=measured.trial.model_copy(update={"stage": "evaluate"}),
            measurement=measured.measurement.model_copy(update={"performance": None, "outcome": outcome}),
        )
        for outcome in (Outcome.COMPLETED, Outcome.FAILED)
    }
    monkeypatch.setattr(sweep_run, "num_attempts", lambda _: 3)
    stored = SimpleNamespace(read=lambda: [measured, *ended.values()])
    sweep_run.print_nothing_to_do(cast("Sweep", stored), stored.read(), before=3)
    words = " ".join("".join(capsys.readouterr()).split())
    assert "Nothing to do: 1 trial measured, 1 stage completed, 1 failed (--retry-failed runs it again)." in words


def test_where_nothing_is_left_to_do_a_program_that_was_changed_since_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fit.py").write_text("print('before')")
    program = composed(["sweep=smoke", "trainer=command", "trainer.command=[fit.py]", "trainer.start=once"])
    first = trial("first").model_copy(update={"experiment": program.settings.experiment()})
    environment = ENVIRONMENT.model_copy(update={"trainer_code": program_code(["fit.py"], tmp_path)})
    measured = result(first, performance(100.0), environment)
    told = []
    for content in ("print('before')", "print('after')"):
        (tmp_path / "fit.py").write_text(content)
        sweep_run.print_nothing_started("1 trial measured", [measured])
        told.append(" ".join(capsys.readouterr().out.split()))
    unchanged, changed = told
    assert unchanged == "Nothing to do: 1 trial measured. --remeasure measures every point again."
    assert "The program has been changed since tp1-pp1-dp1-mb1-gb8 was measured. --remeasure" in changed


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([(Outcome.COMPLETED, ""), (Outcome.INFEASIBLE, "")], "1 trial measured"),
        (
            [(Outcome.FAILED, ""), (Outcome.TIMED_OUT, ""), (Outcome.NODE_FAILED, "")],
            "0 trials measured, 3 failed (--retry-failed runs them again)",
        ),
        (
            [(Outcome.OUT_OF_MEMORY, ""), *[(Outcome.CANCELLED, CANCELLED_BY_NAME)] * 2],
            "0 trials measured, 1 out of memory (only `trisweep retry made-up --trial ID` runs it again),"
            " 2 cancelled (only `trisweep retry made-up --trial ID` runs them again)",
        ),
        (
            [(Outcome.CANCELLED, CANCELLED_BY_NAME), (Outcome.CANCELLED, "cancelled in Slurm")],
            "0 trials measured, 1 cancelled (only `trisweep retry made-up --trial ID` runs it again),"
            " 1 cancelled (the sweep's command runs it again)",
        ),
    ],
)
def test_ends_are_counted_by_what_runs_a_trial_again(
    write_sweep: WriteSweep, ends: list[tuple[Outcome, str]], words: str
) -> None:
    names = [trial.trial_id for trial in PROXY_TRIALS if trial.experiment]
    sweep = write_sweep(PROXY_TRIALS, dict(zip(names, ends, strict=False)))
    readings = [each for each in sweep.read() if each.measurement]
    assert len(readings) == len(ends)
    assert ends_in_words(sweep, readings) == words


def test_a_sweep_whose_trials_all_failed_ends_with_1_and_says_what_to_do(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    place, sweep = SweepPlace(composed(["sweep=smoke"]), on_slurm=True, proxy=True), write_sweep(PROXY_TRIALS, FAILED)
    with pytest.raises(typer.Exit) as ended:
        end_command(sweep, sweep.read(), place)
    assert ended.value.exit_code == 1
    said = capsys.readouterr().out
    assert f"{len(FAILED)} trials failed" in said
    assert "  trisweep status made-up" in said
    assert "--retry-failed" in said


def test_a_sweep_that_measured_something_ends_well(write_sweep: WriteSweep) -> None:
    sweep = write_sweep(PROXY_TRIALS, HOW)
    end_command(sweep, sweep.read(), SweepPlace(composed(["sweep=smoke"]), on_slurm=True, proxy=True))


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome.CANCELLED, ""),
        (Outcome.OUT_OF_MEMORY, "1 trial failed. Why: trisweep status made-up"),
        (Outcome.FAILED, "1 trial failed. Why, and to run what failed again: trisweep status made-up trisweep sweep"),
    ],
)
def test_only_what_retry_failed_runs_again_is_said_to_be_run_so(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str], outcome: Outcome, said: str
) -> None:
    measured, ended = [trial.trial_id for trial in PROXY_TRIALS if trial.experiment][:2]
    sweep = write_sweep(PROXY_TRIALS, {measured: HOW[measured], ended: (outcome, "so")})
    end_command(sweep, sweep.read(), SweepPlace(composed(["sweep=smoke"]), on_slurm=True, proxy=True))
    words = " ".join(capsys.readouterr().out.split())
    assert words.startswith(said)
    assert ("--retry-failed" in words) is (outcome is Outcome.FAILED)


def run_of(sweep: Sweep, tmp_path: Path, wants: Callable[[Trial], bool] = lambda trial: True) -> SweepRun:
    place = SweepPlace(composed(["sweep=smoke", f"output_dir={tmp_path}"]), on_slurm=False, proxy=True)
    budget = Budget(place.settings.budget, None, None)
    return SweepRun(sweep, Rules(budget=budget, wants=wants), place=place, restriction=None)


def test_a_sweep_that_a_limit_ended_says_which_and_not_that_nothing_is_left(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_run, "report_on", lambda *_: None)
    measured = next(trial.trial_id for trial in PROXY_TRIALS if trial.experiment)
    sweep = write_sweep(PROXY_TRIALS, {measured: HOW[measured]})
    Journal(sweep.folder.journal).append(Finished(because="budget.device_hours = 1 leaves 0 device-hours"))
    sweep_run.finish(run_of(sweep, tmp_path), num_before=0)
    words = " ".join(capsys.readouterr().out.split())
    assert "The sweep has ended: budget.device_hours = 1 leaves 0 device-hours." in words
    assert "Nothing to do" not in words


@pytest.mark.parametrize(("retry_failed", "is_left"), [(False, False), (True, True)])
def test_no_time_is_predicted_for_what_failed_and_is_not_run_again(
    retry_failed: bool,
    is_left: bool,
    write_sweep: WriteSweep,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("run_here", "finish", "followed_in_mlflow"):
        monkeypatch.setattr(run, name, MagicMock())
    whole = run_of(write_sweep(PROXY_TRIALS, FAILED), tmp_path)
    run._run_here(replace(whole, orders=SweepOrders((), retry_failed=retry_failed)))
    assert ("Predicted to take about" in capsys.readouterr().out) is is_left


NO_ROOM = OSError(errno.ENOSPC, "No space left on device", "/full/mlflow.lock")


@pytest.mark.parametrize(
    ("measured", "of_report", "said"),
    [
        (True, None, "report.html cannot be written: Is a directory. What was measured is kept"),
        (True, NO_ROOM, "/full/mlflow.lock: No space left on device. What was measured is kept"),
        (False, NO_ROOM, "/full/mlflow.lock: No space left on device."),
    ],
)
def test_a_report_that_cannot_be_written_takes_nothing_from_what_was_measured(
    write_sweep: WriteSweep,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: bool,
    of_report: OSError | None,
    said: str,
) -> None:
    sweep = write_sweep(PROXY_TRIALS, HOW if measured else FAILED)
    if of_report is None:
        sweep.folder.report("html").mkdir()
    else:
        monkeypatch.setattr(sweep_run, "report_on", Mock(side_effect=of_report))
    if measured:
        sweep_run.finish(run_of(sweep, tmp_path))
    else:
        with pytest.raises(typer.Exit) as ended:
            sweep_run.finish(run_of(sweep, tmp_path))
        assert ended.value.exit_code == EXIT_FAILED
    words = " ".join(capsys.readouterr().err.split())
    assert said in words
    assert f"once that is mended, `{next_command('report', sweep)}` reports on it." in words


def test_what_is_printed_on_a_full_disk_is_no_matter_of_the_report(
    write_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_run, "report_on", Mock(side_effect=BrokenPipeError(errno.EPIPE, "Broken pipe")))
    with pytest.raises(BrokenPipeError):
        sweep_run.finish(run_of(write_sweep(PROXY_TRIALS, HOW), tmp_path))


def test_what_the_search_learned_is_said_of_its_points_and_not_of_stages_and_repeats(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage that trains again, and a repeat, have the point of their trial, and would be taken for its seeds."""
    monkeypatch.setattr(sweep_run, "report_on", lambda *_: None)
    point = next(trial for trial in PROXY_TRIALS if trial.experiment)
    longer = {"stage": "longer", "after": point.trial_id}
    changes: tuple[Mapping[str, object], ...] = ({}, longer, {"repeat": 1}, {"role": "kept"})
    trials = [point.model_copy(update={"trial_id": f"t{n}", **change}) for n, change in enumerate(changes)]
    sweep = write_sweep(trials, {trial.trial_id: HOW[point.trial_id] for trial in trials})
    Journal(sweep.folder.journal).append(Finished(because="every point that can run was tried"))
    run = run_of(sweep, tmp_path)
    search = Mock(lessons=lambda readings: [f"learned from {[each.name for each in readings]}"])
    sweep_run.finish(replace(run, rules=replace(run.rules, search=search, max_trials=1)))
    assert "learned from ['t0']" in " ".join(capsys.readouterr().out.split())


def test_trials_that_the_command_does_not_want_are_neither_counted_nor_run_again(
    write_sweep: WriteSweep, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a command was corrected, what failed before stays in the folder, and so do points beside a named part."""
    monkeypatch.setattr(sweep_run, "report_on", lambda *_: None)
    trials = [trial for trial in PROXY_TRIALS if trial.experiment]
    old, measured, other = (trial.trial_id for trial in trials[:3])
    kept = [trial.model_copy(update={"role": "kept"}) if trial.trial_id == old else trial for trial in trials[:3]]
    sweep = write_sweep(kept, {old: FAILED[old], measured: HOW[measured], other: FAILED[other]})
    sweep_run.finish(run_of(sweep, tmp_path, wants=lambda trial: trial.trial_id != other), num_before=0)
    words = " ".join("".join(capsys.readouterr()).split())
    assert "Nothing to do: 1 trial measured. --remeasure" in words
    assert "failed" not in words


@pytest.mark.parametrize(
    ("named", "said"), [((0, 1, 2), "3 trials measured, 3 stages"), ((1,), "1 trial measured, 1 stage")]
)
def test_what_earlier_commands_measured_of_the_points_is_counted_with_the_stages_of_these_points(
    write_sweep: WriteSweep,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[int, ...],
    said: str,
) -> None:
    """A search after a grid asks for the baseline, and starts from the other points that it finds."""
    monkeypatch.setattr(sweep_run, "report_on", lambda *_: None)
    first = next(trial for trial in PROXY_TRIALS if trial.experiment)
    roles = ("asked", "observed", "observed")
    points = [first.model_copy(update={"trial_id": f"t{n}", "role": role}) for n, role in enumerate(roles)]
    stages = [
        point.model_copy(
            update={
                "trial_id": f"{point.trial_id}-again",
                "stage": "again",
                "after": point.trial_id,
                "role": "asked" if point.role == "asked" else "kept",
            }
        )
        for point in points
    ]
    sweep = write_sweep([*points, *stages], {each.trial_id: HOW[first.trial_id] for each in (*points, *stages)})
    of_command = {points[number].trial_id for number in named}
    sweep_run.finish(run_of(sweep, tmp_path, wants=lambda trial: trial.trial_id in of_command), num_before=0)
    assert f"Nothing to do: {said} completed. --remeasure" in " ".join(capsys.readouterr().out.split())


def test_a_trial_that_was_interrupted_waits_and_has_not_failed(write_sweep: WriteSweep) -> None:
    (first, *_) = [trial for trial in PROXY_TRIALS if trial.experiment]
    sweep = write_sweep([first])
    submission = Submission(
        executor="local",
        job_id="0",
        hostname="here",
        attempt=1,
        submitted=1.0,
        shape=shape_of(first.planned),
        output="",
        error="",
    )
    write_submission(sweep.prepare(first), submission)
    (waiting,) = sweep.read()
    assert is_troubled(waiting)
    assert waiting.outcome is Outcome.PENDING
    assert ends_in_words(sweep, [waiting]) == "0 trials measured"
