"""Whoever varies what the program is not told measures the same again, and is told so."""

from __future__ import annotations

import pytest

from launcher.command_trainer.program_check import starts_without_python, untold_keys
from tests.conftest import BuildRecord

LR = "training.learning_rate"
OTHER = ["trainer=command", "trainer.command=[train.py]"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (OTHER, [LR]),
        ([*OTHER, "trainer.command=[train.py,'{training.learning_rate}']"], []),
        ([*OTHER, "+trainer.flags={lr:'{training.learning_rate}'}"], []),
        ([*OTHER, "+trainer.files={a.json:{lr:'{training.learning_rate}'}}"], []),
        ([*OTHER, "+trainer.environment={LR:'{training.learning_rate}'}"], []),
        ([], []),
    ],
)
def test_a_key_that_reaches_the_program_nowhere_is_named(
    build_record: BuildRecord, overrides: list[str], expected: list[str]
) -> None:
    assert untold_keys(build_record([{LR: 1.0}, {LR: 2.0}], overrides)) == expected


def test_a_number_of_ranks_reaches_every_program(build_record: BuildRecord) -> None:
    points = [{"parallel.world_size": 1}, {"parallel.world_size": 2}]
    assert untold_keys(build_record(points, OTHER)) == []


def test_what_only_one_point_says_and_all_have_is_not_named(build_record: BuildRecord) -> None:
    assert untold_keys(build_record([{LR: 1.0, "parallel.world_size": 1}, {LR: 2.0}], OTHER)) == [LR]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["trainer.start=once", "trainer.python=/venv/bin/python"], True),
        (["trainer.start=once", "trainer.python=/venv/bin/python", "trainer.command=['{python}',train.py]"], False),
        (["trainer.start=once"], False),
        (["trainer.python=/venv/bin/python"], False),  # torchrun is started by it
    ],
)
def test_a_python_that_starts_nothing_is_said(build_record: BuildRecord, overrides: list[str], expected: bool) -> None:
    assert starts_without_python(build_record([{}], [*OTHER, *overrides])) is expected
