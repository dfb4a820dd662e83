"""The benchmarks of the trainer compare what is comparable, and say so where there is nothing to measure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.trainer import LAYOUTS, PlainGPT, Stepping, experiment_of, plain_steps, take_turns
from costs import num_parameters


def test_the_plain_gpt_has_the_parameters_of_the_trainers_model() -> None:
    spec = experiment_of({}).model
    with torch.device("meta"):
        plain = PlainGPT(spec.vocab_size, spec.seq_length, spec.hidden_size, spec.num_attention_heads, spec.num_layers)
    assert sum(parameter.numel() for parameter in plain.parameters()) == num_parameters(spec)


@pytest.mark.slow
def test_the_plain_gpt_learns() -> None:
    small = {"model.num_layers": 1, "model.hidden_size": 32, "model.ffn_hidden_size": 128, "model.seq_length": 16}
    steps = plain_steps(
        experiment_of({**small, "model.vocab_size": 256, "training.learning_rate": 0.02}), torch.float32
    )
    losses = [next(steps) for _ in range(8)]
    assert min(losses[4:]) < losses[0]


@pytest.mark.slow
def test_every_layout_trains_the_same_number_of_tokens() -> None:
    experiments = [experiment_of(values) for values, _ in LAYOUTS.values()]
    assert len({one.batch.global_batch_size * one.model.seq_length for one in experiments}) == 1


def noted_steps(rank: int, path: Path, name: str) -> Iterator[None]:
    while True:
        with path.open("a") as file:
            file.write(name)
        yield


def test_steps_that_are_compared_are_taken_in_turn_and_each_comes_first_as_often(tmp_path: Path) -> None:
    ours, theirs = (Stepping(1, noted_steps, tmp_path / "order", name) for name in ("a", "b"))
    pairs = take_turns(ours, theirs, 4)
    for stepping in (ours, theirs):
        stepping.end()
    assert (tmp_path / "order").read_text() == "abbaabba"
    assert all(measured.wall_seconds > 0 for pair in pairs for measured in pair)
