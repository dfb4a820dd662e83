"""Logs that no pattern reads: the message shows a line and patterns, and these read the log, without another run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from conf.overrides import Overrides
from launcher.command_trainer.job import run_here
from launcher.command_trainer.pattern_advice import advice
from tests.cases.test_step_numbers import book_of, loss_of
from tests.launcher.command_trainer.conftest import MakeTrial, make_trial
from train_core.measurement import Fault, Outcome

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


@pytest.mark.parametrize("lines", [[], ["hello"], ["seed 7", "seed 7"], ["loaded 4 files", "model of 12 layers"]])
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
