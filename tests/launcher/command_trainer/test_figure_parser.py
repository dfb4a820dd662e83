"""Numbers that programs print under names, as lines of JSON and as words."""

from __future__ import annotations

import math

import pytest

from conf.plan.experiment import Experiment
from launcher.command_trainer.figure_parser import FigureParser
from tests.composed import load

SCRIPT = ("trainer=script", "trainer.command=[fit.py]", "search.objective=[loss]")


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load(SCRIPT).experiment()


def heard(experiment: Experiment, *lines: str, sought: tuple[str, ...] = ("loss",)) -> FigureParser:
    book = FigureParser(experiment, sought=sought)
    for line in lines:
        list(book.hear(line))
    list(book.close())
    return book


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        ('{"step": 3, "loss": 2.1}', {"loss": 2.1}),
        ('{"val": {"acc": "0.5", "n": [1]}, "ok": true, "name": "x"}', {"val.acc": 0.5}),
        ("loss: 2.1, acc=0.93", {"loss": 2.1, "acc": 0.93}),
        ("Epoch 3/10 | train loss: 2.1 | val loss = 1.9", {"train_loss": 2.1, "val_loss": 1.9}),
        ("{'loss': 2.5, 'epoch': 1.0}", {"loss": 2.5}),
        ("step 7 loss 2.1", {"loss": 2.1}),
        ("[rank0] iter=5 Loss: 1e-3 lr: 3.0e-4 ", {"loss": 1e-3, "lr": 3e-4}),
        ("2026-11-29 10:00:00 INFO eval/accuracy: 93.5%", {"eval/accuracy": 93.5}),
        ("took: 0.21s mem: 3.5 GiB", {"took": 0.21, "mem": 3.5}),
        ("version: 1.2.3 at: 10:30 on: 2026-11-29 size: 12k n: 4,800 id: 3f2a", {}),
        ("loaded 300 files", {}),
    ],
)
def test_names_and_numbers_of_a_line(experiment: Experiment, line: str, figures: dict[str, float]) -> None:
    assert heard(experiment, line).figures == figures


def test_a_number_that_is_none_is_kept_as_such(experiment: Experiment) -> None:
    assert math.isnan(heard(experiment, "loss: nan").figures["loss"])
    assert heard(experiment, '{"loss": Infinity}').figures["loss"] == math.inf


def steps(book: FigureParser) -> list[tuple[int, float]]:
    return [(step.step, step.loss) for step in book.steps]


def test_steps_are_those_that_are_printed_however_many(experiment: Experiment) -> None:
    book = heard(experiment, *(f'{{"step": {n}, "loss": {n}.5}}' for n in (100, 200, 300)), '{"test_loss": 1}')
    assert steps(book) == [(100, 100.5), (200, 200.5), (300, 300.5)]
    assert book.steps[-1].figures == {"loss": 300.5, "test_loss": 1.0}


def test_steps_from_0_on_and_of_epochs_go_on_counting(experiment: Experiment) -> None:
    assert steps(heard(experiment, "step 0 loss 3", "step 1 loss 2")) == [(1, 3.0), (2, 2.0)]
    lines = [f"epoch {epoch} step {step} loss {epoch}.{step}" for epoch in (1, 2) for step in (1, 2)]
    assert steps(heard(experiment, *lines)) == [(1, 1.1), (2, 1.2), (3, 2.1), (4, 2.2)]
    lines = ["Epoch 1", "step 1 loss 3", "step 2 loss 2", "Epoch 2", "step 1 loss 1"]
    assert steps(heard(experiment, *lines)) == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_a_program_that_goes_back_takes_back_what_it_told(experiment: Experiment) -> None:
    assert steps(heard(experiment, "step 1 loss 3", "step 2 loss 9", "step 3 loss 8", "step 2 loss 2")) == [
        *((1, 3.0), (2, 2.0)),
    ]


def test_without_numbers_of_steps_a_name_that_comes_again_begins_one(experiment: Experiment) -> None:
    assert steps(heard(experiment, "loss: 3", "acc: 0.1", "loss: 2", "acc: 0.2")) == [(1, 3.0), (2, 2.0)]
    assert steps(heard(experiment, "done", "final loss: 0.25")) == [(1, 0.25)]


def test_a_figure_that_is_missing_is_named_with_those_that_there_are(experiment: Experiment) -> None:
    assert not heard(experiment, "Val_Acc: 1", sought=("max:train.val_acc",)).lack
    lack = heard(experiment, "epoch 1 val_acc: 1, lr: 2", sought=("max:train.val_ac",)).lack
    assert lack == (
        "it printed no val_ac, which is sought, but lr, val_acc: give --objective val_acc, or print `val_ac: VALUE`"
    )
    assert "no number under a name, and loss is sought" in heard(experiment, "hello").lack


def test_a_pattern_finds_what_is_printed_otherwise() -> None:
    settings = load([*SCRIPT, r"trainer.log.patterns.score='scored (?P<score>\d+) points'"])
    assert heard(settings.experiment(), "scored 12 points").figures == {"score": 12.0}
