"""Overrides are taken apart once, by one rule, whatever sign or quotes they were written with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from conf.compose.load import compose_tree
from conf.overrides import Override, Overrides, command_line, for_a_shell, quoted_text, value_text

ROOT = Path(__file__).parents[2]
PACKAGES = ("costs", "train_core", "rates", "sweeps", "launcher", "results", "calibrate", "cli", "benchmarks")
TAKEN_APART = re.compile(r"""(partition|split)\("="|startswith\("[a-z.]+=|lstrip\("\+""")


@pytest.mark.parametrize(
    ("text", "key", "group", "value", "pins"),
    [
        ("cluster=frontier", "cluster", "cluster", "frontier", False),
        ("cluster='frontier'", "cluster", "cluster", "frontier", False),
        ("batch.micro_batch_size=2", "batch.micro_batch_size", "batch", "2", True),
        ("++parallel.zero_stage=1", "parallel.zero_stage", "parallel", "1", True),
        ("+slurm.extra_sbatch.mem=0", "slurm.extra_sbatch.mem", "slurm", "0", True),
        ("~sweep.proxy", "sweep.proxy", "sweep", None, True),
        ("device@cluster.device=h100-80gb", "device@cluster.device", "device", "h100-80gb", False),
        ("data.path=a=b", "data.path", "data", "a=b", True),
        ("175b", "175b", "175b", None, False),
    ],
)
def test_an_override_is_a_key_of_a_group_and_a_value(
    text: str, key: str, group: str, value: str | None, pins: bool
) -> None:
    override = Override.parse(text)
    assert (override.text, override.key, override.group, override.value) == (text, key, group, value)
    assert override.pins == pins


def test_of_two_choices_the_later_one_holds() -> None:
    given = Overrides.parse(["cluster=frontier", "cluster.num_nodes=2", "cluster=selene"])
    assert given.stated_value("cluster") == "selene"
    assert given.stated_value("slurm") is None
    assert given.pinned_keys() == ["cluster.num_nodes"]


def test_overrides_are_told_apart_by_group_and_keep_their_order_and_text() -> None:
    given = Overrides.choosing("sweep", "175b") + Overrides.parse(["++batch.micro_batch_size=2", "slurm=frontier"])
    assert given.of({"batch", "sweep"}).texts == ("sweep=175b", "++batch.micro_batch_size=2")
    assert given.without({"batch", "sweep"}).texts == ("slurm=frontier",)


def test_nobody_else_takes_the_text_of_an_override_apart() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert files
    assert [path for path in files if TAKEN_APART.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "model.x=null"),
        (True, "model.x=true"),
        ((3, 4), "'model.x=[3,4]'"),
        ({"factor": 8.0, "kind": None}, "'model.x={factor:8.0,kind:null}'"),
    ],
)
def test_a_value_can_be_copied_into_a_command(value: object, text: str) -> None:
    assert for_a_shell("model.x", value) == text
    (shown,) = shlex.split(text)
    assert Override.parse(shown).value == value_text(value)


@pytest.mark.parametrize(
    "text",
    [
        "runs/é",
        "it's",
        'say "it"',
        "a=b,c(1)",
        "~/x",
        "a\\",
        "a\\'b",
        "",
        " a ",
        "a{b}[c]",
        "100%",
        "True",
        "-.5",
        "a\\:b",
        "\\\\x",
    ],
)
def test_a_text_in_quotes_is_taken_as_it_is(text: str) -> None:
    assert compose_tree([f"tracking.experiment={quoted_text(text)}"])["tracking"]["experiment"] == text
    assert Override.parse(f"a.b={quoted_text(text)}").value == text
    (shown,) = shlex.split(for_a_shell("tracking.experiment", text))
    assert Override.parse(shown).value == text
    assert compose_tree([shown])["tracking"]["experiment"] == text


def test_a_command_is_quoted_so_that_people_can_read_it() -> None:
    words = ["trisweep", "ui", "output_dir='my runs'", "tracking.uri='$HOME'"]
    line = command_line(words)
    assert line.startswith("trisweep ui \"output_dir='my runs'\" ")
    assert shlex.split(line) == words
