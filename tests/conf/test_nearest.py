"""What is proposed for a word that is not known."""

from __future__ import annotations

import pytest

from conf.nearest import most_like, nearest

KEYS = [
    *("parallel", "parallel.world_size", "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"),
    *("batch", "batch.micro_batch_size", "batch.global_batch_size", "notify", "model", "parallel", "batch"),
]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("parallel.tensor_size", "parallel.tensor_parallel_size"),
        ("parallel.pipeline_size", "parallel.pipeline_parallel_size"),
        ("paralel.world_size", "parallel.world_size"),
        ("parallel.wordl_size", "parallel.world_size"),
        ("batch.micro_batch", "batch.micro_batch_size"),
        ("bach", "batch"),
        ("tp", "parallel.tensor_parallel_size"),
        ("batch.gb", "batch.global_batch_size"),
    ],
)
def test_a_key_is_proposed_whose_own_words_are_meant_and_not_one_that_only_shares_the_group(
    word: str, meant: str
) -> None:
    assert nearest(word, KEYS) == f"Did you mean {meant}?"


@pytest.mark.parametrize(
    ("word", "meant"), [("h100-sxm", "dgx-h100"), ("h100", "dgx-h100"), ("b200", "dgx-b200"), ("mi300", "mi300x")]
)
def test_a_name_is_proposed_that_shares_a_word_and_not_one_that_shares_some_letters(word: str, meant: str) -> None:
    assert most_like(word, ["dgx-b200", "dgx-h100", "gb200-nvl72", "h20", "h800", "mi300x", "a800"]) == meant


@pytest.mark.parametrize(("word", "meant"), [("llama-3-70b", "llama-3.1-70b"), ("llama3.1-8b", "llama-3.1-8b")])
def test_the_point_of_a_version_does_not_part_a_name(word: str, meant: str) -> None:
    assert most_like(word, ["llama-2-70b", "llama-2-7b", "llama-3.1-70b", "llama-3.1-8b", "llama-3.1-405b"]) == meant


def test_what_is_known_is_listed_once() -> None:
    assert nearest("zzz", KEYS) == "Known: parallel, batch, notify, model."


def test_a_key_that_is_like_none_of_its_group_gets_those_of_the_group() -> None:
    assert (
        nearest("parallel.foo", KEYS) == "Known in parallel: world_size, tensor_parallel_size, pipeline_parallel_size."
    )


def test_a_long_list_says_how_many_more_there_are() -> None:
    assert nearest("zzz", [f"name{number}" for number in range(25)]).endswith("name19 and 5 more.")
