"""Odd figures in a program's log: none of them becomes a step, a rate or a gigabyte."""

from __future__ import annotations

import math

import pytest

from conf.plan.experiment import Experiment
from costs import hardware_flops
from launcher.command_trainer.log_parser import StepParser, opening_of
from launcher.command_trainer.performance import performance_of
from tests.composed import load

TEN_STEPS = ["trainer=command", "trainer.command=[train.py]", "training.num_steps=10", "training.num_warmup_steps=2"]


@pytest.fixture
def experiment() -> Experiment:
    return load(TEN_STEPS).experiment()


def heard(experiment: Experiment, *lines: str) -> StepParser:
    book = StepParser(experiment)
    for line in lines:
        list(book.hear(line))
    list(book.close())
    return book


@pytest.mark.parametrize("seconds", ["1e300", "1e-320", "nan", "inf", "0", "-1"])
def test_no_step_takes_an_impossible_time(experiment: Experiment, seconds: str) -> None:
    assert heard(experiment, f"step 3 loss 4.1 time {seconds} s").steps == []


@pytest.mark.parametrize(
    ("printed", "loss"),
    [
        ("1,234.83", 1234.83),
        ("4,900.00,", 4900.0),
        ("1,234,567", 1234567.0),
        ("-1,234.5e-3", -1.2345),
        ("4.1,", 4.1),
        ("4.1,lr", 4.1),
        ("4.", 4.0),
        ("2,71", math.nan),
        ("0,271", math.nan),
        ("1.234,83", math.nan),
        ("12,34 loss 5", math.nan),
    ],
)
def test_a_comma_in_a_loss_sets_thousands_apart_or_makes_it_none(
    experiment: Experiment, printed: str, loss: float
) -> None:
    (step,) = heard(experiment, f"step 3 loss {printed} time 0.2 s").steps
    assert step.loss == pytest.approx(loss, nan_ok=True)


def test_a_step_has_commas_between_thousands() -> None:
    lines = [f"step {n:,}, loss 4.1, time 0.2 s" for n in (999, 1_000, 1_001)]
    experiment = load([*TEN_STEPS, "training.num_steps=2000"]).experiment()
    book = heard(experiment, *lines)
    assert [step.step for step in book.steps] == [999, 1_000, 1_001]


@pytest.mark.parametrize(("printed", "seconds"), [("1.5e+00 s", 1.5), ("2e-1s", 0.2), ("1.5e+03 ms", 1.5)])
def test_a_time_may_have_an_exponent(experiment: Experiment, printed: str, seconds: float) -> None:
    (step,) = heard(experiment, f"step 3 loss 4.1 time {printed}").steps
    assert step.step_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("pattern", "opening"),
    [
        (r"\bstep[ :=]+(?P<step>\d+)", "step"),
        (r"\biteration +(?P<step>\d+)/ *\d+ \|", "iteration "),
        (r"\blm loss: (?P<loss>[^ |]+)", "lm loss"),
        (r"steps?: (?P<step>\d+)", "step"),
        (r"steps*: (?P<step>\d+)", "step"),
        (r"steps{0,1}: (?P<step>\d+)", "step"),
        (r"s?tep (?P<step>\d+)", ""),
        (r"step (?P<step>\d+)|it (?P<loss>\d+)", ""),
        (r"step (?P<step>\d+[]]|it)", ""),
        (r"(?i)step (?P<step>\d+)", ""),
        (r"(?<!validate )\bstep: +(?P<step>\d+) ", ""),
        (r"\Bstep", ""),
        ("step", "step"),
    ],
)
def test_what_a_pattern_opens_with_is_in_all_that_it_matches(pattern: str, opening: str) -> None:
    assert opening_of(pattern) == opening


def test_a_held_out_loss_in_a_line_after_its_step_belongs_to_the_step() -> None:
    pattern = r"trainer.log.patterns.held_out='val_loss (?P<held_out_loss>\S+)'"
    evaluated = ["step 1 loss 4 time 0.2 s", "step 2 loss 3 time 0.2 s", "val step 2 val_loss 3.5"]
    book = heard(load([*TEN_STEPS, pattern]).experiment(), *evaluated, "step 3 loss 2 time 0.2 s", "val_loss 2.5")
    assert [(step.step, step.loss, step.held_out_loss) for step in book.steps] == [
        (1, 4, None),
        (2, 3, 3.5),
        (3, 2, 2.5),
    ]


def test_memory_beyond_all_machines_is_none(experiment: Experiment) -> None:
    book = heard(experiment, f"memory: {'9' * 50} GiB", "step 1 loss 4.1 time 0.2 s", "memory: 3 GiB")
    assert book.memory_bytes == 3 * 2**30


def test_a_program_that_goes_on_from_a_checkpoint_counts_from_its_first_step(experiment: Experiment) -> None:
    book = heard(experiment, *(f"step {1_200_000 + n} loss 4.1 time 0.2 s" for n in range(5)))
    assert [step.step for step in book.steps] == [1, 2, 3, 4, 5]
    measured = performance_of(experiment, book.steps, book.tflops, book.memory_bytes)
    assert measured is not None
    assert measured.unrecorded_steps == (6, 7, 8, 9, 10)


def test_one_step_far_beyond_the_plan_is_none(experiment: Experiment) -> None:
    lines = [f"step {n} loss 4.1 time 0.2 s" for n in (1, 2, 99_999_999, 3)]
    assert [step.step for step in heard(experiment, *lines).steps] == [1, 2, 3]
    assert [step.step for step in heard(experiment, "step 99999999", *lines).steps] == [1, 2, 3]


def test_hardware_flops_are_those_of_the_programs_own_recomputation() -> None:
    """`torchtitan` keeps the attention core, which others repeat."""
    overrides = [*TEN_STEPS, "model=llama-2-7b", "cluster=dgx-h100", "parallel.recompute=selective"]
    for costs_of, selects in (("torchtitan", True), ("megatron-core", False)):
        experiment = load([*overrides, f"trainer.costs_of={costs_of}"]).experiment()
        book = heard(experiment, *(f"step {step} loss 4.1 time 0.2 s" for step in range(1, 11)))
        measured = performance_of(experiment, book.steps, book.tflops, book.memory_bytes)
        size = experiment.batch.global_batch_size
        expected = hardware_flops(experiment.model, size, "selective", selects_operators=selects)
        assert measured is not None
        assert measured.hardware_flops == expected
