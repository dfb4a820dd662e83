"""Logs whose step numbers begin anew with each epoch, are printed by several ranks, or go back to a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from launcher.command_trainer.failure import miscounted
from launcher.command_trainer.job import run_here
from launcher.command_trainer.log_parser import StepParser
from tests.composed import load
from tests.launcher.command_trainer.conftest import MakeTrial, make_trial
from train_core.trial.measurement import Outcome

__all__ = ["make_trial"]

TWENTY = ["trainer=command", "trainer.command=[train.py]", "training.num_steps=20", "training.num_warmup_steps=1"]
EPOCHS, LENGTH = 4, 5
BAR = {
    "step": r"[|\]]\s*(?P<step>\d+)/\d+ \[",
    "loss": r"\bloss[=: ]+(?P<loss>[.\d]+)",
    "seconds": r"(?P<step_seconds>[.\d]+)s/it",
}


def loss_of(step: int) -> float:
    return 8.0 - 0.3 * (step - 1)


def book_of(
    lines: Iterable[str], patterns: dict[str, str] | None = None, *more: str, sought: Sequence[str] = ()
) -> StepParser:
    """What is read of a log of 20 steps; patterns instead of those of `trainer=command`."""
    experiment = load([*TWENTY, *more]).experiment()
    if patterns is not None:
        log = experiment.trainer.log.model_copy(update={"patterns": patterns})
        experiment = experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update={"log": log})})
    book = StepParser(experiment, sought=sought)
    for line in lines:
        list(book.hear(line))
    list(book.close())
    return book


def steps_and_losses(book: StepParser) -> list[tuple[int, float]]:
    return [(step.step, round(step.loss, 3)) for step in book.steps]


ALL = [(step, round(loss_of(step), 3)) for step in range(1, EPOCHS * LENGTH + 1)]


def in_epochs(form: str, *, after: str = "", heading: str = "", first: int = 1) -> Iterator[str]:
    """The lines of four epochs of five steps; `e` and `n` count from 0 or 1, `after` follows each epoch."""
    for epoch in range(EPOCHS):
        if heading:
            yield heading.format(e=epoch + first, epochs=EPOCHS)
        for number in range(LENGTH):
            loss = loss_of(epoch * LENGTH + number + 1)
            yield form.format(e=epoch + first, n=number + 1, zero=number, m=LENGTH, loss=loss)
        for line in after.splitlines():
            yield line.format(e=epoch + first)


LIGHTNING_VALIDATION = """\
Validation DataLoader 0:   0%|          | 0/3 [00:00<?, ?it/s]
Validation DataLoader 0:  33%|###       | 1/3 [00:00<00:00, 1.02s/it, loss=9.1]
Validation DataLoader 0: 100%|##########| 3/3 [00:00<00:00, 1.02s/it, loss=9.3]
Epoch {e}: 100%|##########| 5/5 [00:01<00:00, 1.20s/it, val_loss=9.3]"""
TEST_LINES = "Test: [0/3]\tTime  0.300 (0.300)\tLoss 9.0000e+00 (9.0e+00)\nTest: [2/3]\tTime  0.300\tLoss 9.1 (9.0)"
PLAIN_BAR_WITHOUT_LOSS = "100%|######| 1/3 [00:00<00:00, 1.20s/it]\n100%|######| 3/3 [00:00<00:00, 1.20s/it]"
OF_A_METER = {
    "step": r"\[\s*(?P<step>\d+)/\d+",
    "loss": r"(?<!_)\bLoss:? +(?P<loss>[.\deE+-]+)",
    "seconds": r"\bTime:? +(?P<step_seconds>[.\d]+)",
}

FORMATS: dict[str, tuple[list[str], dict[str, str] | None, tuple[str, ...]]] = {
    "epoch in the line": ([*in_epochs("epoch {e} step {n}/{m} loss {loss:.3f} time 0.20 s")], None, ()),
    "epoch from 0": ([*in_epochs("epoch={e} step {n} loss {loss:.3f} time 0.20 s", first=0)], None, ()),
    "numbers alone": ([*in_epochs("step {n} loss {loss:.3f} time 0.20 s")], None, ()),
    "a total, no epoch": ([*in_epochs("step {n}/{m} loss {loss:.3f} time 0.20 s")], None, ()),
    "a heading": (
        [
            *in_epochs(
                "step {n} loss {loss:.3f} time 0.20 s", heading="=== Epoch {e} of {epochs} ===", after="epoch {e} done"
            )
        ],
        None,
        ("parallel.world_size=2",),
    ),
    "torchs tutorials": (
        [*in_epochs("Epoch [{e}/4], Step [{n}/{m}], Loss: {loss:.4f}, time: 0.2s")],
        {
            "step": r"Step \[(?P<step>\d+)",
            "loss": r"Loss: (?P<loss>[.\d]+)",
            "time": r"time: (?P<step_seconds>[.\d]+)s",
        },
        (),
    ),
    "epoch by a group": (
        [*in_epochs("[{e}, {n}] loss: {loss:.4f} time: 0.2 s")],
        {
            "step": r"\[(?P<epoch>\d+), +(?P<step>\d+)\]",
            "loss": r"loss: (?P<loss>[.\d]+)",
            "time": r"time: (?P<step_seconds>[.\d]+) s",
        },
        ("parallel.world_size=2",),
    ),
    "Lightning": (
        [
            "Sanity Checking DataLoader 0: 100%|##########| 2/2 [00:00<00:00, 1.51s/it]",
            *in_epochs(
                "Epoch {e}:  40%|####      | {n}/{m} [00:01<00:01, 1.20s/it, loss={loss:.3f}, v_num=0]",
                after=LIGHTNING_VALIDATION,
                first=0,
            ),
        ],
        BAR,
        (),
    ),
    "Keras": (
        [
            *in_epochs(
                "{n}/{m} [=====>......] - 0s 210ms/step - loss: {loss:.4f}",
                heading="Epoch {e}/{epochs}",
                after="5/5 [==============] - 1s 210ms/step - val_loss: 9.0000",
            )
        ],
        {
            "step": r"^(?P<step>\d+)/\d+ \[",
            "loss": r"- loss: (?P<loss>[.\d]+)",
            "t": r"(?P<step_milliseconds>[.\d]+)ms/step",
        },
        (),
    ),
    "fairseq": (
        [
            *in_epochs(
                "2026-11-01 10:00:00 | INFO | train_inner | epoch 00{e}:     {n} / {m} loss={loss:.3f}, ppl=9, ups=5.0",
                after="2026-11-01 10:00:09 | INFO | valid | epoch 00{e} | valid on 'valid' subset | loss 9.1 | ppl 9",
            )
        ],
        {
            "step": r"epoch \d+: +(?P<step>\d+) / \d+",
            "loss": r"\bloss=(?P<loss>[.\d]+)",
            "rate": r"\bups=(?P<samples_per_second>[.\d]+)",
        },
        (),
    ),
    "timm": (
        [
            *in_epochs(
                "Train: {e} [   {zero}/{m} ( 20%)]  Loss: {loss:.3f} (7.5)  Time: 0.310s,  825/s  (0.3s)  LR: 1.0e-03",
                after="Test: [   0/3]  Time: 0.3 (0.3)  Loss:   9.100 (9.1)\nTest: [   3/3]  Time: 0.3  Loss: 9.200",
                first=0,
            )
        ],
        OF_A_METER,
        ("trainer.log.first_step=0",),
    ),
    "ImageNet": (
        [
            *in_epochs(
                "Epoch: [{e}][{zero}/{m}]\tTime  0.300 ( 0.400)\tData 0.1 (0.1)\tLoss {loss:.4e} (7.1e+00)",
                after=TEST_LINES,
                first=0,
            )
        ],
        OF_A_METER,
        ("trainer.log.first_step=0",),
    ),
    "a bar for each epoch": (
        [*in_epochs(" 40%|####  | {n}/{m} [00:01<00:01, 1.20s/it, loss={loss:.3f}]", after=PLAIN_BAR_WITHOUT_LOSS)],
        BAR,
        (),
    ),
    "a bar that begins at 0": (
        [
            *in_epochs(
                "{e}:  40%|####  | {n}/{m} [00:01<00:01, 1.20s/it, loss={loss:.3f}]",
                heading="{e}:   0%|      | 0/5 [00:00<?, ?it/s]",
            )
        ],
        BAR,
        (),
    ),
    "mmengine": (
        [
            *in_epochs(
                "11/01 10:00:00 - mmengine - INFO - Epoch(train) [{e}][{n}/{m}]  lr: 1e-3  time: 0.3  loss: {loss:.4f}",
                after="11/01 10:00:03 - mmengine - INFO - Epoch(val) [{e}][3/3]    time: 0.1  loss: 9.1",
            )
        ],
        {
            "step": r"\]\[(?P<step>\d+)/",
            "loss": r"\bloss: (?P<loss>[.\d]+)",
            "time": r"\btime: (?P<step_seconds>[.\d]+)",
        },
        (),
    ),
    "named ranks": (
        [
            line
            for of_first in in_epochs("step {n}/{m} loss {loss:.3f} time 0.20 s")
            for line in (f"[default0]:{of_first}", f"[default1]:{of_first.replace('loss ', 'loss 1')}")
        ],
        None,
        ("parallel.world_size=2",),
    ),
    "labelled tasks": (
        [
            line
            for of_first in in_epochs("step {n}/{m} loss {loss:.3f} time 0.20 s")
            for line in (f"0: {of_first}", f"1: {of_first.replace('loss ', 'loss 1')}")
        ],
        None,
        ("parallel.world_size=2",),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_steps_that_begin_anew_with_each_epoch_go_on_counting(name: str) -> None:
    lines, patterns, more = FORMATS[name]
    book = book_of(lines, patterns, *more)
    assert steps_and_losses(book) == ALL
    assert miscounted(book) == ""


BAR_OF_ANY = {
    "step": r"[|\]]\s*(?P<step>\d+)/\d+ \[",
    "loss": r"\bloss[=: ]+(?P<loss>[.\d]+)",
    "seconds": r", +(?P<step_seconds>[.\d]+)(?:s/it|it/s)",
}
BAR_ALONE = {name: pattern for name, pattern in BAR_OF_ANY.items() if name != "seconds"}
OF_20 = [f"{5 * n}%|## | {n}/20 [00:01<00:02, 1.25s/it, loss={loss_of(n):.3f}]" for n in range(1, 21)]
LOADING = [f"Loading shards: {25 * n}%|## | {n}/4 [00:01<00:02, 1.9s/it]" for n in range(5)]
EVALUATION = [f"{12 * n}%|## | {n}/8 [00:01<00:02, 9.1it/s]" for n in range(9)]
WITH_DICTIONARIES = [
    line
    for n in range(1, 21)
    for line in (
        f"{5 * n}%|## | {n}/20 [00:01<00:02, 1.25s/it]",
        f"{{'loss': {loss_of(n):.3f}, 'epoch': {n / 10}}}",
        f"{5 * n}%|## | {n}/20 [00:01<00:02, 1.25s/it]",
    )
]
OF_DETR = [
    *in_epochs(
        "Epoch: [{e}]  [ {zero}/{m}]  eta: 0:03:21  lr: 0.0001  loss: {loss:.4f} (7.5)  time: 0.3  data: 0.01",
        after="Epoch: [{e}] Total time: 0:00:02 (0.3 s / it)\nAveraged stats: loss: 9.9 (9.9)\n"
        "Test:  [0/3]  eta: 0:00:01  loss: 9.1 (9.1)  time: 0.2\nTest: Total time: 0:00:01 (0.3 s / it)",
        first=0,
    )
]
STEPS = [f"step {n} loss {loss_of(n):.3f} time 0.2 s" for n in range(1, 21)]
OTHER_BARS: dict[str, tuple[list[str], dict[str, str] | None, tuple[str, ...]]] = {
    "shards are loaded": ([*LOADING, *OF_20], BAR_OF_ANY, ()),
    "shards, steps without a time": ([*LOADING, *OF_20], BAR_ALONE, ("loss",)),
    "an evaluation amid": ([*OF_20[:6], *EVALUATION, *OF_20[6:13], *EVALUATION, *OF_20[13:]], BAR_OF_ANY, ()),
    "an evaluation with losses": (
        [*OF_20[:6], *(line.replace("it/s", "it/s, loss=9.1") for line in EVALUATION), *OF_20[6:]],
        BAR_OF_ANY,
        (),
    ),
    "an evaluation longer than what was trained": (
        [*OF_20[:6], *(line.replace("/8", "/18").replace("8/", "17/") for line in EVALUATION), *OF_20[6:]],
        BAR_OF_ANY,
        (),
    ),
    "an evaluation, dictionaries of losses": (
        [*WITH_DICTIONARIES[:30], *EVALUATION, "{'eval_loss': 9.5, 'epoch': 1.0}", *WITH_DICTIONARIES[30:]],
        {**BAR_OF_ANY, "loss": r"'loss': (?P<loss>[.\d]+)"},
        (),
    ),
    "a bar of the epochs": (
        [
            *in_epochs(
                "Training: 40%|## | {n}/{m} [00:01<00:02, 1.25s/it, loss={loss:.3f}]",
                heading="Epochs: 25%|## | {e}/{epochs} [00:01<00:02, 6.25s/it]",
                first=0,
            )
        ],
        BAR_OF_ANY,
        (),
    ),
    "a bar of each epoch's validation": (
        [
            *in_epochs(
                "{e}/4  2.1G  {loss:.3f}  640: 40%|## | {n}/{m} [00:01<00:02, 1.25s/it]",
                after="  Class  Images  mAP50: 100%|## | 1/1 [00:00<00:00, 9.1it/s]",
                heading="{e}/4    0G    nan  640: 0%|   | 0/5 [00:00<?, ?it/s]",
            )
        ],
        {**BAR_OF_ANY, "loss": r"[.\d]+G\s+(?P<loss>[.\d]+)"},
        (),
    ),
    "a line about an epoch after it": (
        OF_DETR,
        {"step": r"\[ *(?P<step>\d+)/", "loss": r"\bloss: (?P<loss>[.\d]+)", "t": r"\btime: (?P<step_seconds>[.\d]+)"},
        (),
    ),
}


@pytest.mark.parametrize("name", OTHER_BARS)
def test_bars_of_something_else_are_no_steps(name: str) -> None:
    lines, patterns, sought = OTHER_BARS[name]
    first = ("trainer.log.first_step=0",) if lines is OF_DETR else ()
    book = book_of(lines, patterns, *first, sought=sought)
    assert steps_and_losses(book) == ALL
    assert miscounted(book) == ""
    assert {step.step_seconds for step in book.steps} <= {1.25, 0.3} or sought


@pytest.mark.parametrize(
    ("after", "word"),
    [
        (7, "Finished saving the checkpoint of step 5"),
        (20, "checkpoint of step 18 written"),
        (10, "best so far: step 3"),
        (7, "Restored from step 7"),
    ],
)
def test_a_word_about_an_earlier_step_is_no_step(after: int, word: str) -> None:
    assert steps_and_losses(book_of([*STEPS[:after], word, *STEPS[after:]])) == ALL


def test_a_word_about_a_step_of_an_earlier_epoch_moves_no_epoch() -> None:
    lines = [*in_epochs("epoch {e} step {n}/{m} loss {loss:.3f} time 0.2 s")]
    assert steps_and_losses(book_of([*lines[:10], "best so far: epoch 1, step 3", *lines[10:]])) == ALL


def test_a_program_that_goes_back_keeps_the_step_of_its_checkpoint() -> None:
    book = book_of([*STEPS[:7], "Resuming from the checkpoint of step 5", *STEPS[5:]])
    assert steps_and_losses(book) == ALL


def test_steps_whose_figures_follow_on_lines_of_their_own_begin_anew_too() -> None:
    lines = [
        line for each in in_epochs("[batch={n}/{m}]:\n  loss {loss:.3f}\n  time 0.2 s") for line in each.split("\n")
    ]
    patterns = {
        "step": r"\[batch=(?P<step>\d+)",
        "loss": r"loss (?P<loss>[.\d]+)",
        "time": r"time (?P<step_seconds>[.\d]+) s",
    }
    assert steps_and_losses(book_of(lines, patterns)) == ALL
    assert steps_and_losses(book_of([line.replace("/5]", "]") for line in lines], patterns)) == ALL


def test_a_log_whose_steps_are_mostly_beyond_the_plan_is_said() -> None:
    lines = ["step 1 loss 9 time 0.2 s", *(f"step {200 * n} loss 8 time 0.2 s" for n in range(1, 20))]
    assert miscounted(book_of(lines, sought=("loss",))).endswith(
        "give training.num_steps=3800, or have it make no more"
    )
    assert miscounted(book_of([*STEPS, "step 2100 loss 1 time 0.2 s"], sought=("loss",))) == ""


def test_epochs_of_unlike_lengths_each_count_with_their_own() -> None:
    lengths, lines, step = (3, 7, 5, 5), list[str](), 0
    for epoch, length in enumerate(lengths):
        for number in range(1, length + 1):
            step += 1
            lines.append(f"epoch {epoch} step {number}/{length} loss {loss_of(step):.3f} time 0.2 s")
    assert steps_and_losses(book_of(lines)) == ALL
    assert steps_and_losses(book_of([line.partition(" step")[2].join(("step", "")) for line in lines])) == ALL
    assert (
        steps_and_losses(book_of(["step" + line.partition(" step")[2].replace("/", " of ") for line in lines])) == ALL
    )


def test_an_epoch_that_prints_every_second_step_is_as_long_as_its_line_says() -> None:
    lines = [line for line in in_epochs("Epoch {e} step {n}/{m} loss {loss:.3f} time 0.2 s") if "step 1/" not in line]
    assert [step.step for step in book_of(lines).steps] == [step for step in range(1, 21) if step % 5 != 1]
    sparse = [line for line in lines if "step 2/" in line or "step 4/" in line]
    assert [step.step for step in book_of(sparse).steps] == [2, 4, 7, 9, 12, 14, 17, 19]


@pytest.mark.parametrize("mark", ["", "epoch 1 "])
def test_steps_to_which_a_program_goes_back_take_the_place_of_the_first(mark: str) -> None:
    first = [f"{mark}step {n}/20 loss {loss_of(n) + 1:.3f} time 0.2 s" for n in range(1, 14)]
    again = [f"{mark}step {n}/20 loss {loss_of(n):.3f} time 0.2 s" for n in range(11, 21)]
    book = book_of([*first, *again])
    assert steps_and_losses(book) == [*((n, round(loss_of(n) + 1, 3)) for n in range(1, 11)), *ALL[10:]]


def test_a_program_that_begins_again_from_the_start_is_not_in_its_second_epoch() -> None:
    whole = [f"step {n}/20 loss {loss_of(n):.3f} time 0.2 s" for n in range(1, 21)]
    assert steps_and_losses(book_of([*whole[:7], *whole])) == ALL
    said = [*whole[:7], "[default] Worker group FAILED. 3/3 attempts left; will restart worker group", *whole]
    assert steps_and_losses(book_of([line.replace("/20", "") for line in said])) == ALL


def test_an_epoch_that_is_gone_back_to_is_replaced() -> None:
    lines = [*in_epochs("epoch {e} step {n}/{m} loss {loss:.3f} time 0.2 s")]
    assert steps_and_losses(book_of([*lines[:12], *lines[8:]])) == ALL
    assert steps_and_losses(book_of([*lines[:11], *lines[9:]])) == ALL


def test_ranks_without_a_name_print_the_same_step() -> None:
    lines = [f"step {n} loss {loss_of(n):.3f} time 0.2 s" for n in range(1, 21)]
    others = [line.replace("loss ", "loss 1") for line in lines]
    in_turn = [line for pair in zip(lines, others, strict=True) for line in pair]
    assert steps_and_losses(book_of(in_turn, None, "parallel.world_size=2")) == ALL
    # One rank a step ahead, and one whose lines come in one go.
    ahead = [line for n in range(0, 20, 2) for line in (*lines[n : n + 2], *others[n : n + 2])]
    assert steps_and_losses(book_of(ahead, None, "parallel.world_size=2")) == ALL
    assert steps_and_losses(book_of([*lines, *lines], None, "parallel.world_size=2")) == ALL


def test_epochs_of_two_steps_are_told_from_ranks_or_the_trial_says_that_they_cannot_be() -> None:
    lines = [f"step {n % 2 + 1} loss {loss_of(n + 1):.3f} time 0.2 s" for n in range(20)]
    assert steps_and_losses(book_of(lines)) == ALL
    cause = miscounted(book_of(lines, None, "parallel.world_size=2"))
    assert "tells of step 1 10 times, more often than there are ranks (2)" in cause
    assert "(?P<epoch>...)" in cause


def test_more_steps_than_the_plan_has_are_said() -> None:
    lines = in_epochs("epoch {e} step {n}/{m} loss {loss:.3f} time 0.20 s")
    cause = miscounted(book_of(lines, None, "training.num_steps=10"))
    assert "its log tells of 20 steps, as their numbers begin anew 3 times, and training.num_steps = 10" in cause
    assert cause.endswith("give training.num_steps=20")


def test_a_figure_of_the_last_validation_before_the_step_is_no_validation() -> None:
    form = "best val_loss 9.123 acc 0.1 | epoch {e} step {n}/{m} loss {loss:.3f} time 0.20 s"
    lines = [
        line.replace("best val_loss 9.123 acc 0.1 | ", "") if n < 5 else line for n, line in enumerate(in_epochs(form))
    ]
    assert steps_and_losses(book_of(lines)) == ALL


def test_a_bar_that_shows_a_number_first_with_the_loss_of_the_step_before_has_its_own() -> None:
    bar = "Epoch {e}:  40%|####      | {n}/5 [00:17<01:02,  4.47s/it{loss}, v_num=1]"
    lines = list[str]()
    for step in range(1, 21):
        for said in (step - 1, step):
            loss = f", loss={loss_of(said):.3f}" if said else ""
            lines.append(bar.format(e=(step - 1) // 5, n=(step - 1) % 5 + 1, loss=loss))
    assert steps_and_losses(book_of(lines, BAR)) == ALL


def test_a_loss_in_a_line_of_its_own_is_of_its_ranks_step() -> None:
    """As under mpirun, where one rank may begin a step before another has told of the last one."""
    patterns = {
        "step": r"Batch (?P<step>\d+)/\d+",
        "loss": r"Total loss is +(?P<loss>[.\d]+)",
        "time": r"took (?P<step_seconds>[.\d]+)",
    }
    lines = list[str]()
    for step in range(1, 21):
        told = f"Epoch {(step - 1) // 5}/4, Batch {(step - 1) % 5 + 1}/5"
        lines += [f"[1,0]<stdout>:{told}", f"[1,0]<stdout>:Total loss is {loss_of(step):.3f} took 0.2"]
        lines += [f"[1,1]<stdout>:{told}"]
        lines.insert(len(lines) - 2 if step > 1 else len(lines), f"[1,1]<stdout>:Total loss is {step + 50}.5 took 0.2")
    assert steps_and_losses(book_of(lines, patterns, "parallel.world_size=2")) == ALL


@pytest.mark.parametrize(
    ("form", "patterns"),
    [
        (
            "2020-05-15 14:41:49,633 - mmdet - INFO - Epoch [{e}][{n}/{m}]\tlr: 1.250e-03, eta: 1 day, 15:06:01, "
            "time: 1.870, data_time: 1.108, memory: 6226, loss_cls: 0.3341, acc: 86.3379, loss: {loss:.4f}",
            {"step": r"\]\[(?P<step>\d+)/", "loss": r"\bloss: (?P<loss>\S+)", "t": r"\btime: (?P<step_seconds>[.\d]+)"},
        ),
        (
            "| epoch {e:03}  {n} / {m} loss={loss:.3f} (1.50), wps=962, lr=0.001, clip=100%, gnorm=2.1427, ups=0.5",
            {
                "step": r"(?P<step>\d+) / \d+",
                "loss": r"\bloss=(?P<loss>\S+)",
                "t": r"\bups=(?P<steps_per_second>[.\d]+)",
            },
        ),
        (
            "     {e}/99   5.2G   {loss:.3f}   0.1612   0.03867    28   640:  1%|#  | {n}/{m} [00:04<05:27, 4.26s/it]",
            {
                "epoch": r"^ +(?P<epoch>\d+)/\d+",
                "step": r"\| (?P<step>\d+)/\d+ \[",
                "loss": r"^ +\d+/\d+ +\S+ +(?P<loss>[.\d]+)",
                "t": r"(?P<step_seconds>[.\d]+)s/it",
            },
        ),
        (
            "22/06/01 10:06:44 INFO [{zero}]\ttrain-logloss:{loss:.6f}\teval-logloss:0.5174 in 0.1s, epoch {e}",
            {
                "step": r"INFO \[(?P<step>\d+)\]",
                "loss": r"train-logloss:(?P<loss>\S+)",
                "t": r" in (?P<step_seconds>[.\d]+)s",
            },
        ),
        (
            "eta: 8:00:58  epoch: {e} iter: {n}  loss: {loss:.4f} (5.6273)  time: 0.2908 (0.2888)  max mem: 2082",
            {"step": r"\biter: (?P<step>\d+)", "loss": r"\bloss: (?P<loss>\S+)", "t": r"\btime: (?P<step_seconds>\S+)"},
        ),
    ],
    ids=["mmdet", "fairseq of 2018", "YOLO", "a booster", "maskrcnn"],
)
def test_forms_of_other_peoples_logs(form: str, patterns: dict[str, str]) -> None:
    more = ("trainer.log.first_step=0",) if "{zero}" in form else ()
    assert steps_and_losses(book_of(in_epochs(form), patterns, *more)) == ALL


@pytest.mark.parametrize(
    "said", ["Resuming from checkpoint step 10", "saved the checkpoint of step 10", "best: step 3"]
)
def test_a_line_that_names_an_earlier_step_and_tells_nothing_of_it_voids_nothing(said: str) -> None:
    lines = [f"step {n} loss {loss_of(n):.3f} time 0.2 s" for n in range(1, 21)]
    assert steps_and_losses(book_of([*lines[:11], said, *lines[11:]])) == ALL
    if said.startswith("Resuming"):
        assert steps_and_losses(book_of([*lines[:14], said, *lines[10:]])) == ALL


def test_a_log_of_more_steps_than_the_plan_has_gives_no_loss_of_its_middle(make_trial: MakeTrial) -> None:
    trial = make_trial("for n in range(1, 9): print(f'step {n} loss {9 - n} time 0.1 s')")
    assert run_here(trial.path).outcome is Outcome.COMPLETED
    trial.write_trial({**json.loads(trial.trial.read_text()), "objective": ["loss"]})
    assert "its log tells of step 8, and training.num_steps = 4" in run_here(trial.path).cause


def test_a_number_far_beyond_the_plan_is_no_step_that_was_made(make_trial: MakeTrial) -> None:
    program = "print('decay until step 5000')\nfor n in range(1, 5): print(f'step {n} loss {9 - n} time 0.1 s')"
    trial = make_trial(program + "\nprint('next at step 4000')")
    trial.write_trial({**json.loads(trial.trial.read_text()), "objective": ["loss"]})
    assert run_here(trial.path).outcome is Outcome.COMPLETED


def test_numbers_that_count_samples_are_said(make_trial: MakeTrial) -> None:
    trial = make_trial("for n in range(0, 640, 64): print(f'step {n}/640 loss 4 time 0.1 s')")
    cause = run_here(trial.path).cause
    assert cause == "the numbers of its steps, such as 576, are beyond training.num_steps = 4"


def test_iterations_that_begin_a_line_are_steps() -> None:
    """As nanoGPT prints them, between lines of its evaluations."""
    lines = [f"iter {n}: loss {loss_of(n):.4f}, time {500 + n}.25ms, mfu 15.34%" for n in range(1, 21)]
    assert steps_and_losses(book_of(lines)) == ALL
    both = [f"iter {7 * n} | step {n} loss {loss_of(n):.4f} time 298.27 ms" for n in range(1, 21)]
    assert steps_and_losses(book_of(both)) == ALL


PROGRAM = """
for epoch in range(4):
    for step in range(5):
        print(f"step {step + 1} loss {8 - 0.3 * (5 * epoch + step):.1f} time 0.2 s")
"""


def test_the_loss_of_a_trial_is_that_of_its_last_epoch(make_trial: MakeTrial) -> None:
    trial = make_trial(PROGRAM, {"training.num_steps": 20})
    measurement = run_here(trial.path)
    assert measurement.outcome is Outcome.COMPLETED
    assert measurement.performance is not None
    assert len(measurement.performance.losses) == 20
    assert measurement.performance.final_loss == pytest.approx(2.3)
    assert [step.step for step in trial.read_metrics()] == list(range(1, 21))


def test_metrics_of_a_program_that_goes_back_hold_each_step_once(make_trial: MakeTrial) -> None:
    goes_back = "for n in (1, 2, 3, 4, 2, 3, 4): print(f'step {n} loss {n} time 0.1 s')"
    trial = make_trial(goes_back)
    assert run_here(trial.path).outcome is Outcome.COMPLETED
    assert [step.step for step in trial.read_metrics()] == [1, 2, 3, 4]


@pytest.mark.parametrize("first", [0, 1])
def test_a_program_that_goes_on_with_an_epoch_counts_on_from_an_earlier_attempt(
    make_trial: MakeTrial, tmp_path: Path, first: int
) -> None:
    """As programs do that save after each epoch: the log of the next attempt begins with a later one."""
    form = "print(f'epoch {{e}} step {{n}}/2 loss {{5 - 2 * e - n}} time 0.1 s')"
    loop = "for e in range({}, {}):\n    for n in (1, 2): " + form.replace("{{", "{").replace("}}", "}")
    trial = make_trial(loop.replace("{}", str(first), 1).replace("{}", str(first + 1), 1))
    run_here(trial.path)
    (tmp_path / "program.py").write_text(loop.replace("{}", str(first + 1), 1).replace("{}", str(first + 2), 1))
    run_here(trial.path)
    assert [step.step for step in trial.read_metrics()] == [1, 2, 3, 4]
