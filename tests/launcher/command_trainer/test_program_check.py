"""Flags are held against the program's own parser before anything is submitted; here one that is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import ConfigError
from launcher.command_trainer.program_check import check_record
from sweeps.points.plan import plan_sweep
from sweeps.trial import SweepRecord
from tests.composed import composed
from tests.messages import refused

ARGUMENTS = """
import argparse

def parse_args():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--tensor-size", type=int)
    parser.add_argument("--micro-batch-size", type=int)
    return parser.parse_args()

def validate_args(args, defaults):
    assert args.micro_batch_size != 2, "micro-batches of two\\nare not made"

def core_transformer_config_from_args(args):
    assert args.tensor_size < 99
"""
POINTS = ["sweep=smoke", "cluster=local", "sweep.axes={parallel.world_size:[2],batch.micro_batch_size:[1,2]}"]


@pytest.fixture
def checkout(tmp_path: Path) -> list[str]:
    """What names a checkout of Megatron-LM, as far as its parser is asked for."""
    package = tmp_path / "megatron" / "training"
    package.mkdir(parents=True)
    (package / "arguments.py").write_text(ARGUMENTS)
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = lambda: False\n")
    program = ["trainer=command", "trainer.command=[pretrain_gpt.py]", "trainer.parser=megatron-lm"]
    flags = "+trainer.flags={micro-batch-size:'{batch.micro_batch_size}',tensor-size:1}"
    return [*program, f"trainer.working_dir={tmp_path}", flags]


def record_of(*overrides: str) -> SweepRecord:
    return plan_sweep(composed([*POINTS, *overrides]), proxy=False, git_sha="")


def reasons(record: SweepRecord) -> list[str]:
    return [trial.infeasible_reason or "" for trial in record.trials if not trial.selected]


def test_a_plan_that_the_programs_parser_refuses_is_a_row_with_its_reason(checkout: list[str]) -> None:
    warnings: list[str] = []
    record = record_of(*checkout)
    checked = check_record(record, warnings.append)
    words = "trainer = my-trainer: its own parser refuses the command: micro-batches of two are not made"
    assert set(reasons(checked)) - set(reasons(record)) == {words}
    assert warnings == []


def test_a_flag_that_the_program_does_not_know_stops_the_sweep_and_names_the_nearest(checkout: list[str]) -> None:
    record = record_of(*checkout, "+trainer.flags.micro-batch=3")
    with refused(ConfigError, "trainer.flags.micro-batch"):
        check_record(record, pytest.fail)


def test_a_failed_check_without_words_is_told_by_its_line(checkout: list[str]) -> None:
    checked = check_record(record_of(*checkout, "trainer.flags.tensor-size=99"), pytest.fail)
    assert any(reason.endswith("assert args.tensor_size < 99") for reason in reasons(checked))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["trainer.working_dir=/"],
            "were not checked by its own parser: ModuleNotFoundError: No module named 'megatron",
        ),
        (["trainer.working_dir=/nowhere"], "were not checked by its own parser: /nowhere cannot be started"),
        (["trainer.python=/no/python"], "were not checked by its own parser: /no/python cannot be started"),
        (["trainer.python=/bin/true"], "were not checked by its own parser: it ended with code 0 and said nothing"),
        (["trainer.prefix=[apptainer,exec]"], "were not checked by its own parser: it is started by apptainer"),
    ],
)
def test_where_the_parser_cannot_be_asked_one_line_says_so_and_all_goes_on(
    checkout: list[str], overrides: list[str], words: str
) -> None:
    warnings: list[str] = []
    record = record_of(*checkout, *overrides)
    assert check_record(record, warnings.append) == record
    assert len(warnings) == 1
    assert words in warnings[0]


def test_without_a_checkout_or_a_python_of_its_own_nothing_is_started(checkout: list[str]) -> None:
    record = record_of(*checkout, "trainer.working_dir=null")
    assert check_record(record, pytest.fail) == record
