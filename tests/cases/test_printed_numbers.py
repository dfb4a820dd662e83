"""Numbers as programs print them: each is read whole, with its unit, or said to be unknown; none as another number."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import pytest

from conf.types.trainer_spec import Decimal
from launcher.command_trainer.failure import misread
from launcher.command_trainer.job import run_here
from launcher.command_trainer.printed_numbers import UnknownNotation, number_at
from tests.cases.test_step_numbers import book_of
from tests.launcher.command_trainer.conftest import MakeTrial, make_trial
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Fault, Measurement, Outcome

__all__ = ["make_trial"]


def read(text: str, quantity: str = "loss", decimal: Decimal | None = None) -> float | None:
    return number_at(text, (0, len(text)), len(text), quantity, decimal)


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("4.8", "loss", 4.8),
        ("4.800000E+00 |", "loss", 4.8),
        ("2.10E-01 s", "step_seconds", 0.21),
        ("1.5D-03", "learning_rate", 1.5e-3),
        (".5,", "loss", 0.5),
        ("-0.25.", "loss", -0.25),
        ("12.01k", "loss", 12010.0),
        ("12.01k", "tokens_per_second", 12010.0),
        ("12.01k tok/s", "tokens_per_second", 12010.0),
        ("12.01 ktok/s", "tokens_per_second", 12010.0),
        ("1.2M/s", "samples_per_second", 1.2e6),
        ("825/s", "samples_per_second", 825.0),
        ("825 samples/sec", "samples_per_second", 825.0),
        ("1,234.5", "loss", 1234.5),
        ("1,234,567", "loss", 1234567.0),
        ("12,345", "tokens_per_second_per_device", 12345.0),
        ("1 234", "step", 1234.0),
        ("4\u202f800.5", "loss", 4800.5),
        ("4'800.5", "loss", 4800.5),
        ("1_000", "step", 1000.0),
        ("1,000,", "step", 1000.0),
        ("1e3", "loss", 1000.0),
        ("NaN", "loss", math.nan),
        ("-inf", "loss", -math.inf),
        ("tensor(2.3025, device='cuda:0')", "loss", 2.3025),
        ("'2.30'", "loss", 2.3),
        ("4.1(avg 4.2)", "loss", 4.1),
        ("2.345acc:0.9", "loss", 2.345),
        ("4.1 nats", "loss", 4.1),
        ("0.5,200", "loss", 0.5),
        ("100it [00:10]", "step", 100.0),
        ("12th", "step", 12.0),
        ("1.2e3ms", "step_seconds", 1.2),
        ("1.2e3ms", "step_milliseconds", 1200.0),
        ("211 ms", "step_seconds", 0.211),
        ("0.2 s", "step_milliseconds", 200.0),
        ("350us", "step_seconds", 350e-6),
        ("350 \u00b5s", "step_seconds", 350e-6),
        ("1.5 min", "step_seconds", 90.0),
        ("0.5min/step", "step_seconds", 30.0),
        ("0.3 min: 0.1 max: 0.5", "step_seconds", 0.3),
        ("0.25s/it", "step_seconds", 0.25),
        ("4.0it/s", "step_seconds", 0.25),
        ("4.0 steps/s", "step_seconds", 0.25),
        ("30it/min", "step_seconds", 2.0),
        ("4.0it/s", "steps_per_second", 4.0),
        ("2.0s/it", "steps_per_second", 0.5),
        ("4.0", "steps_per_second", 4.0),
        ("0.211 | lm loss", "step_seconds", 0.211),
        ("3.2G", "memory_gib", 3.2),
        ("word", "loss", None),
        ("211ms", "step", None),
    ],
)
def test_a_number_is_read_to_its_end_and_in_its_unit(text: str, quantity: str, value: float | None) -> None:
    assert read(text, quantity) == (value if value is None else pytest.approx(value, nan_ok=True))


@pytest.mark.parametrize(
    ("text", "quantity", "readings"),
    [
        ("4,800", "loss", (4.8, 4800.0)),
        ("0,211", "step_seconds", (0.211,)),
        ("2,71", "loss", (2.71,)),
        ("1.234,83", "loss", (1234.83,)),
        ("3,141", "samples_per_second", (3.141, 3141.0)),
        ("12.01q", "loss", ()),
        ("2.1\u00d710^-1", "loss", ()),
        ("2.1x10^-1", "loss", ()),
        ("1:02", "step_seconds", ()),
        ("0.2x", "step_seconds", ()),
        ("3m20s", "step_seconds", ()),
        ("0.3s/sample", "step_seconds", ()),
        ("4.1.2", "loss", ()),
        ("12furlongs", "tokens_per_second", ()),
    ],
)
def test_what_may_be_two_numbers_or_is_not_known_is_none(text: str, quantity: str, readings: tuple[float, ...]) -> None:
    with pytest.raises(UnknownNotation) as caught:
        read(text, quantity)
    assert caught.value.readings == pytest.approx(readings)


@pytest.mark.parametrize(
    ("text", "decimal", "value"),
    [
        ("4,800", "comma", 4.8),
        ("4,800", "point", 4800.0),
        ("1.234,83", "comma", 1234.83),
        ("4.800", "comma", 4800.0),
        ("0.21", "comma", 0.21),
        ("2,71e-3", "comma", 2.71e-3),
        ("4.123,7", "point", 4.123),
    ],
)
def test_a_stated_decimal_sign_decides(text: str, decimal: Decimal, value: float) -> None:
    assert read(text, decimal=decimal) == pytest.approx(value)


@pytest.mark.parametrize("pattern", [r"loss (?P<loss>[\d.]+)", r"loss (?P<loss>\d+).*", r"loss (?P<loss>\S+)"])
def test_a_pattern_that_finds_a_part_of_a_number_reads_no_other(pattern: str) -> None:
    """`[.0-9]+` finds 4 in 4,800, 2.10 in 2.10E-01 and 12.01 in 12.01k."""
    patterns = {"step": r"step (?P<step>\d+)", "loss": pattern, "time": r"time (?P<step_seconds>[\d.]+)"}
    for printed, loss in (("2.10E-01", 0.21), ("12.01k", 12010.0), ("4,800", math.nan)):
        book = book_of([f"step {n} loss {printed} time 1.2e3ms" for n in (1, 2)], patterns)
        assert [step.loss for step in book.steps] == pytest.approx([loss, loss], nan_ok=True)
        assert [step.step_seconds for step in book.steps] == pytest.approx([1.2, 1.2])


def test_values_between_commas_are_read_apart() -> None:
    patterns = {"line": r"^(?P<step>\d+),(?P<loss>[\d.]+),(?P<step_seconds>[\d.]+)"}
    (step,) = book_of(["10,4,200"], patterns).steps
    assert (step.step, step.loss, step.step_seconds) == (10, 4.0, 200.0)


def test_columns_beside_a_number_are_not_its_thousands() -> None:
    patterns = {"line": r"^(?P<step>\d+) \d+ (?P<loss>[\d.]+) (?P<step_seconds>[\d.]+)"}
    (step,) = book_of(["12 345 4.5 0.2"], patterns).steps
    assert (step.step, step.loss, step.step_seconds) == (12, 4.5, 0.2)


def test_one_bar_may_print_steps_per_second_and_seconds_per_step() -> None:
    patterns = {
        "bar": r"(?P<step>\d+)/\d+ \[.*, +(?P<step_seconds>[\d.]+)(?:s/it|it/s)",
        "loss": r"loss=(?P<loss>[\d.]+)",
    }
    bar = "{n:3}%|#   | {n}/20 [00:01<00:02, {rate}, loss=2.5]"
    book = book_of([bar.format(n=1, rate="1.25s/it"), bar.format(n=2, rate=" 4.00it/s")], patterns)
    assert [step.step_seconds for step in book.steps] == [1.25, 0.25]


def test_a_comma_that_may_be_a_decimal_one_is_said_and_a_key_reads_it() -> None:
    lines = [f"step {n} loss {50 - n},{n:03} time {210 + n} ms" for n in range(1, 21)]
    cause = misread(book_of(lines))
    assert cause == (
        "its log writes loss as '48,002', which may mean 48.002 or 48002: "
        "give trainer.log.decimal=comma or trainer.log.decimal=point"
    )
    read_by_comma = book_of(lines, None, "trainer.log.decimal=comma")
    assert misread(read_by_comma) == ""
    assert read_by_comma.steps[-1].loss == pytest.approx(30.02)


def test_an_unknown_notation_is_said_with_its_pattern() -> None:
    lines = [f"step {n} loss 2.1x10^{n} time 0.2 s" for n in range(1, 4)]
    assert misread(book_of(lines)).startswith("its log writes loss as '2.1x10^2', in an unknown notation")
    assert misread(book_of(lines)).endswith("trainer.log.patterns.loss")


def test_words_for_no_loss_are_no_notation() -> None:
    lines = [f"step {n} loss {word} time 0.2 s" for n, word in enumerate(("-", "N/A", "None", "n/a"), start=1)]
    assert misread(book_of(lines)) == ""


def seeking(trial: TrialFolder, objective: Iterable[str]) -> Measurement:
    """The end of a trial of a sweep that seeks this."""
    content = json.loads(trial.trial.read_text())
    trial.write_trial({**content, "objective": list(objective)})
    return run_here(trial.path)


WITHOUT_TIMES = "for n in range(1, 5): print(f'step {n} loss {5 - n}.5')"


def test_a_program_needs_no_times_where_a_loss_is_sought(make_trial: MakeTrial) -> None:
    trial = make_trial(WITHOUT_TIMES)
    measurement = seeking(trial, ["loss"])
    assert (measurement.outcome, measurement.cause) == (Outcome.COMPLETED, "")
    assert measurement.performance is not None
    assert measurement.performance.losses == (4.5, 3.5, 2.5, 1.5)
    assert not measurement.performance.is_timed
    assert [step.step for step in trial.read_metrics()] == [1, 2, 3, 4]


def test_a_program_needs_neither_times_nor_losses_where_a_later_figure_is_sought(make_trial: MakeTrial) -> None:
    assert seeking(make_trial("for n in range(1, 5): print(f'step {n}')"), ["evaluate.score"]).performance is not None


@pytest.mark.parametrize("objective", [["throughput"], ["loss", "step_time"], []])
def test_a_program_needs_times_where_they_are_sought(make_trial: MakeTrial, objective: list[str]) -> None:
    measurement = seeking(make_trial(WITHOUT_TIMES), objective)
    assert (measurement.outcome, measurement.why) == (Outcome.FAILED, Fault.UNTIMED)


def test_times_count_where_a_program_prints_them_though_a_loss_is_sought(make_trial: MakeTrial) -> None:
    lines = "for n in range(1, 5): print(f'step {n} loss {5 - n}.5' + (' time 0.25 s' if n % 2 else ''))"
    measurement = seeking(make_trial(lines), ["loss"])
    assert measurement.performance is not None
    assert (measurement.performance.is_timed, measurement.performance.step_seconds) == (True, 0.25)
    assert len(measurement.performance.losses) == 4


def test_steps_without_a_loss_say_so_where_it_is_sought(make_trial: MakeTrial) -> None:
    measurement = seeking(make_trial("print('step 1'); print('step 2')"), ["loss"])
    assert measurement.cause.startswith("nothing measurable in its log: no line matches trainer.log.patterns.loss")
