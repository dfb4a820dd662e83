"""What the command line says: columns by their names and by dotted keys, and whole models."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from diagnose.readers.given import chosen_trainer, given_facts
from diagnose.runs import SaidBy
from tests.messages import refused


@pytest.mark.parametrize(
    ("override", "column", "value"),
    [
        ("tp=8", "tp", "8"),
        ("parallel.tensor_parallel_size=8", "tp", "8"),
        ("parallel.world_size=64", "num_gpus", "64"),
        ("batch.global_batch_size=512", "global_batch", "512"),
        ("model.seq_length=4096", "seq", "4096"),
        ("cluster=dgx-h100", "cluster", "dgx-h100"),
        ("gpus_per_node=4", "gpus_per_node", "4"),
        ("network_gbits_per_node=4 x 100", "network_gbits_per_node", "4 x 100"),
        ("model=llama-3.1-8b", "kv_heads", "8"),
        ("model=deepseek-v3", "mla", "128+64 / v 128, q_lora 1536, kv_lora 512"),
    ],
)
def test_an_override_fills_its_column(override: str, column: str, value: str) -> None:
    fact = given_facts([override])[column]
    assert (fact.value, fact.said_by) == (value, SaidBy.OVERRIDE)
    assert fact.at is not None
    assert fact.at.text == override


def test_the_sequence_of_a_models_file_is_not_that_of_the_run() -> None:
    assert "seq" not in given_facts(["model=llama-3.1-8b"])


def test_a_trainer_chooses_the_patterns_and_fills_no_column() -> None:
    assert given_facts(["trainer=hf-trainer"]) == {}
    assert chosen_trainer(["trainer=hf-trainer"]) == "hf-trainer"


@pytest.mark.parametrize("text", ["tp=two", "batch.global_batch_size=-4", "seq=", "cluster=dgxh100"])
def test_a_value_that_cannot_be_is_refused(text: str) -> None:
    with refused(ConfigError, text.partition("=")[0]):
        given_facts([text])


def test_a_slip_is_answered_with_what_may_be_meant() -> None:
    with refused(ConfigError, "parallel.tensor_parallel_sise"):
        given_facts(["parallel.tensor_parallel_sise=8"])
