"""What a price still needs, by name and place."""

from __future__ import annotations

import pytest

from diagnose.readers.missing import missing_of
from diagnose.runs import Fact, LogLine, SaidBy, UserRun
from sweeps.table.columns import REQUIRED_COLUMNS

WHOLE = {column: Fact("1", SaidBy.FLAG) for column in (*REQUIRED_COLUMNS, "gpu")}


def run_without(*columns: str, program: str = "megatron") -> UserRun:
    return UserRun("a", program, columns={name: fact for name, fact in WHOLE.items() if name not in columns})


def test_a_whole_run_lacks_nothing() -> None:
    assert missing_of(run_without()) == []


@pytest.mark.parametrize(
    ("program", "column", "place"),
    [
        ("megatron", "global_batch", "--global-batch-size"),
        ("gpt-neox", "tp", "--tensor-model-parallel-size"),
        ("torchtitan", "seq", "training.seq_len"),
        ("nanotron", "micro_batch", "tokens.micro_batch_size"),
        ("megatron-bridge", "num_gpus", "trainer.num_nodes"),
        ("hf-trainer", "seq", "cutoff_len"),
        ("maxtext", "layers", "num_hidden_layers"),
    ],
)
def test_a_column_is_asked_for_in_the_words_of_the_program(program: str, column: str, place: str) -> None:
    (missing,) = missing_of(run_without(column, program=program))
    assert (missing.column, missing.give) == (column, f"{column}=NUMBER")
    assert place in missing.place


def test_a_cluster_stands_for_a_device() -> None:
    (missing,) = missing_of(run_without("gpu"))
    assert missing.give == "cluster=dgx-h100, or gpu=H100"
    run = run_without("gpu")
    run.columns["cluster"] = Fact("dgx-h100", SaidBy.OVERRIDE)
    assert missing_of(run) == []


def test_a_choice_among_experts_needs_their_number() -> None:
    run = run_without()
    run.columns["num_experts"] = Fact("64", SaidBy.FLAG)
    assert [each.column for each in missing_of(run)] == ["top_k"]


def test_a_variable_that_nobody_sets_is_shown() -> None:
    run = run_without("global_batch")
    run.settings["global_batch_size"] = Fact("$GBS", SaidBy.FLAG, LogLine("run.sh", 7, "--global-batch-size $GBS"))
    (missing,) = missing_of(run)
    assert missing.at == run.settings["global_batch_size"]
