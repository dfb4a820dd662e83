"""Logs that no pattern reads: the message shows a line and patterns, and these read the log, without another run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from conf.overrides import Overrides
from launcher.command_trainer.job import run_here
from launcher.command_trainer.pattern_advice import advice
from launcher.command_trainer.reread import reread_logs
from launcher.control.orders import SweepCommand, SweepOrders
from launcher.local.machine import MachineCapacity
from launcher.local.workplace import ThisMachine
from launcher.provenance import snapshot_code
from launcher.sweep import begin_sweep
from sweeps.points.plan import trial_of
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder, Trial
from tests.cases.test_step_numbers import book_of, loss_of
from tests.composed import compose_tree
from tests.conftest import BuildRecord
from tests.launcher.command_trainer.conftest import MakeTrial, make_trial
from tests.launcher.control.test_conductor import LIMIT_SECONDS, Seeds, adaptive, to_the_end
from tests.launcher.test_run_here import seeds
from train_core.trial.measurement import Fault, Outcome

__all__ = ["make_trial"]

ALL = ("step", "step_seconds", "loss")
FORMS = {
    "brackets": "[{n:05}/200] train={loss:.2e} (5.7ms/it)",
    "words": "it {n} of 20: loss {loss:.4f}, took 0.2s",
    "equals": "n={n} nll={loss:.4f} dt=5.7ms",
    "a table": "| {n:4} | train: {loss:.3f} | 0.21 s |",
    "a bar": " 40%|####    | {n}/20 [00:01<00:02, 1.25s/it, loss={loss:.3f}]",
    "a rate": "update {n:>3}  cost: {loss:.3f}  4.0it/s",
    "a time stamp": "2026-11-01 10:00:{n:02} INFO iter: {n} | lm loss: {loss:.5E} | step_time: 0.210",
    "an epoch": "epoch 1, batch {n}, loss = {loss:.3f} (avg 7.5), time per batch 0.2 sec",
    "json": '{{"iter": {n}, "train_loss": {loss:.3f}, "dt": 0.21}}',
    "dollars": "${n}$ objective `{loss:.3f}` 5.7ms",
}


def patterns_in(said: str) -> dict[str, str]:
    """The patterns of a message, as a shell and the overrides' grammar hand them on."""
    words = shlex.split(said.partition(" Give ")[2])
    entries = Overrides.parse(words).entries
    return {each.key.removeprefix("trainer.log.patterns."): str(each.value) for each in entries}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_patterns_that_are_advised_read_the_log(form: str) -> None:
    lines = ["a header of 2026", *(form.format(n=n, loss=loss_of(n)) for n in range(1, 21)), "done in 4.2 s"]
    said = advice(lines, ALL)
    assert said.startswith(f'It prints "{lines[-2].strip()}". Give ')
    book = book_of(lines, patterns_in(said))
    assert [step.step for step in book.steps] == list(range(1, 21))
    assert [step.loss for step in book.steps] == pytest.approx([loss_of(n) for n in range(1, 21)], rel=0.01)
    assert {round(step.step_seconds, 4) for step in book.steps} <= {0.0057, 0.2, 0.21, 1.25, 0.25}


IN_EPOCHS = {
    "a bar with a percentage": "Steps: {percent}%|## | {n}/20 [00:01<00:02, 1.25s/it, step_loss={loss:.3f}]",
    "a meter": "Train: {epoch} [ {of_epoch}/5 ({percent}%)]  Loss: {loss:.3f} (7.5)  Time: 0.21s,  825/s",
    "an epoch in brackets": "Epoch(train)  [{epoch}][{of_epoch}/5]  time: 0.21  data_time: 0.01  loss: {loss:.3f}",
    "a time since the start": "step:{n}/20 train_loss:{loss:.4f} train_time:{since}ms step_avg:210.00ms",
    "a bar with a time before that of a step": "{of_epoch}/5 ##### 1s 210ms/step - loss: {loss:.4f}",
    "a number before the words": "host:0 train:900 [iteration {of_epoch}/5] nll={loss:.4f} dt: 0.21",
}


@pytest.mark.parametrize("form", IN_EPOCHS.values(), ids=IN_EPOCHS)
def test_patterns_that_are_advised_know_steps_from_epochs_and_percentages(form: str) -> None:
    lines = [
        form.format(n=n, loss=loss_of(n), epoch=(n - 1) // 5, of_epoch=(n - 1) % 5 + 1, percent=5 * n, since=210 * n)
        for n in range(1, 21)
    ]
    book = book_of(lines, patterns_in(advice(lines, ALL)))
    assert [step.step for step in book.steps] == list(range(1, 21))
    assert [step.loss for step in book.steps] == pytest.approx([loss_of(n) for n in range(1, 21)], abs=1e-3)
    assert {round(step.step_seconds, 4) for step in book.steps} <= {0.21, 1.25}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["hello"],
        ["v4.1.2 1,2,3.4", "v4.1.3 1,2,3.5"],
        ["seed 7", "seed 7"],
        ["loaded 4 files", "model of 12 layers"],
    ],
)
def test_of_a_log_without_steps_nothing_is_advised(lines: Sequence[str]) -> None:
    assert advice(lines, ALL) == ""


def test_a_quantity_that_the_line_does_not_hold_is_not_advised() -> None:
    said = advice([f"done with item {n} of many" for n in range(9)], ALL)
    assert (
        said
        == """It prints "done with item 8 of many". Give "trainer.log.patterns.step='\\bitem\\s*(?P<step>\\d+)'\""""
    )


PROGRAM = "for n in range(1, 5): print(f'[{n:05}/200] train={5 - n}.49e-01 (5.7ms/it)')"


def test_a_log_that_no_pattern_reads_is_shown_with_patterns_that_do(make_trial: MakeTrial) -> None:
    measurement = run_here(make_trial(PROGRAM).path)
    assert measurement.why is Fault.UNREAD
    assert 'It prints "[00004/200] train=1.49e-01 (5.7ms/it)". Give ' in measurement.cause
    assert "trainer.log.patterns.step='" in measurement.cause
    again = run_here(make_trial(PROGRAM, {"trainer.log.patterns": patterns_in(measurement.cause)}).path)
    assert again.outcome is Outcome.COMPLETED
    assert again.performance is not None
    assert again.performance.losses == (0.449, 0.349, 0.249, 0.149)
    assert again.performance.step_seconds == pytest.approx(0.0057)


def test_a_sought_loss_of_which_no_line_tells_is_said(make_trial: MakeTrial) -> None:
    trial = make_trial("for n in range(1, 5): print(f'step {n} nll {5 - n}.5 time 0.1 s')")
    trial.write_trial({**json.loads(trial.trial.read_text()), "objective": ["loss"]})
    cause = run_here(trial.path).cause
    assert cause.startswith("no loss in its log: no line matches trainer.log.patterns.loss. It prints ")
    assert re.search(cause.partition("loss='")[2].partition("'")[0], "step 4 nll 1.5 time 0.1 s")


def test_a_bar_that_rewrites_its_line_is_shown_as_one(make_trial: MakeTrial, tmp_path: Path) -> None:
    program = "import sys\nfor n in range(1, 5): sys.stdout.write(f'\\r {n}/4 [00:01, 1.25s/it, cost={5 - n}.5]')"
    assert 'It prints "4/4 [00:01, 1.25s/it, cost=1.5]". Give ' in run_here(make_trial(program).path).cause


PROGRAM_OF_A_SWEEP = """
import pathlib, sys
with (pathlib.Path(__file__).parent / "starts").open("a") as file:
    file.write("x")
for n in range(1, 4):
    print(f"[{n:05}/200] train={8 - n - int(sys.argv[1])}.49e-01 (5.7ms/it)")
"""
Given = Callable[..., list[TrialReading]]


@pytest.fixture
def given(build_record: BuildRecord, tmp_path: Path) -> Given:
    """`given("trainer.log.first_step=1")`: how the trials of a sweep of four seeds stand after the command."""
    (tmp_path / "program.py").write_text(PROGRAM_OF_A_SWEEP)
    folder = SweepFolder(tmp_path / "runs" / "test-local")

    def command(*overrides: str, chosen: bool = False) -> list[TrialReading]:
        words = f"trainer.command=['{{python}}',{tmp_path / 'program.py'},'{{training.seed}}']"
        program = ("trainer=command", "trainer.start=once", words, *overrides)
        record = build_record(seeds(1 if chosen else 4), program)
        tree = compose_tree(["sweep=smoke", "training.num_steps=3", *program])
        rules = replace(
            adaptive(Seeds(4 if chosen else 0)),
            max_concurrent_trials=1,
            draft=(lambda proposal: trial_of(tree, proposal.point, proposal.because)) if chosen else None,
        )
        orders = SweepOrders(("sweep=smoke", *overrides))
        here = ThisMachine(
            MachineCapacity(2, 2**40, 0),
            lambda: snapshot_code(folder.code.absolute()),
            LIMIT_SECONDS,
            lambda path, devices, limit: run_here(Path(path)),
        )
        conductor = begin_sweep(SweepCommand(Sweep(folder, record), rules, orders), here, on_slurm=False)
        to_the_end(conductor)
        return list(conductor.sweep.read())

    return command


def test_corrected_patterns_read_the_logs_that_are_there_and_nothing_runs_twice(given: Given, tmp_path: Path) -> None:
    before = given()
    assert [each.outcome for each in before] == [Outcome.FAILED] * 2 + [Outcome.PENDING] * 2
    measured = before[0].measurement
    assert measured is not None
    after = given(*shlex.split(measured.cause.partition(" Give ")[2]))
    assert [each.outcome for each in after] == [Outcome.COMPLETED] * 4
    assert (tmp_path / "starts").read_text() == "x" * 4
    assert [each.name for each in after] == [each.name for each in before]
    assert [each.label for each in after] == [each.label for each in before]
    first = after[0].performance
    assert first is not None
    assert first.losses == (0.749, 0.649, 0.549)
    assert first.step_seconds == pytest.approx(0.0057)
    assert [step.loss for step in after[0].steps] == [0.749, 0.649, 0.549]


@pytest.mark.thorough  # than test_corrected_patterns above
def test_points_that_a_search_has_chosen_are_read_again_too(given: Given, tmp_path: Path) -> None:
    before = given(chosen=True)
    assert [each.outcome for each in before] == [Outcome.FAILED] * 2
    after = given(*shlex.split(before[1].cause.partition(" Give ")[2]), chosen=True)
    assert [each.outcome for each in after] == [Outcome.COMPLETED] * 4
    assert {each.trial.role for each in after} == {"asked"}
    assert (tmp_path / "starts").read_text() == "x" * 4


@pytest.mark.thorough  # than test_corrected_patterns above
def test_a_log_that_still_tells_nothing_stays_failed_with_the_new_reason(given: Given, tmp_path: Path) -> None:
    given()
    after = given(r"trainer.log.patterns.step='\[(?P<step>\d+)/'")
    assert [each.outcome for each in after][:2] == [Outcome.FAILED] * 2
    assert "no line matches trainer.log.patterns.seconds" in after[0].cause
    assert len((tmp_path / "starts").read_text()) <= 4


def test_a_program_that_failed_by_itself_is_not_read_again(given: Given, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM_OF_A_SWEEP + "sys.exit(3)")
    given()
    after = given(r"trainer.log.patterns.line='\[(?P<step>\d+)/\S+ train=(?P<loss>\S+) .(?P<step_milliseconds>[.\d]+)'")
    assert Outcome.COMPLETED not in [each.outcome for each in after]


def test_no_log_is_looked_for_of_the_packages_own_trainer(
    build_record: BuildRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands of trials, and every command that goes on with a sweep would read all of them again."""
    read = list[Trial]()
    monkeypatch.setattr(Sweep, "read_trial", lambda _, trial: read.append(trial))
    reread_logs(Sweep(SweepFolder(tmp_path / "own"), build_record(seeds(3), ())))
    assert read == []
