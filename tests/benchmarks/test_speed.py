"""The benchmarks of the trainer compare what is comparable, and say so where there is nothing to measure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.trainer import LAYOUTS, PlainGPT, Stepping, experiment_of, plain_steps, take_turns
from train_core.costs import num_parameters


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


@pytest.mark.parametrize("name", gpu.MODELS)
def test_what_is_measured_on_a_gpu_is_predicted_to_fit_it(name: str) -> None:
    candidates = gpu._candidates(name, "dgx-h200")
    assert {one.experiment.parallel.recompute for one in candidates} == set(gpu.RECOMPUTES)
    assert all(one.predicted.fits for one in candidates)


def test_all_runs_on_a_gpu_are_predicted_to_end_within_the_time_of_one_job() -> None:
    fits = [fit for name in gpu.MODELS for fit in gpu._candidates(name, "dgx-h200")]
    # The fastest of each model is run once more, with compiled layers; a slower one takes longer.
    slowest = [max(fits, key=lambda fit: fit.predicted.step_seconds)] * len(gpu.MODELS)
    seconds = [gpu.START_SECONDS + fit.experiment.training.num_steps * fit.predicted.step_seconds for fit in fits]
    again = [gpu.START_SECONDS + fit.experiment.training.num_steps * fit.predicted.step_seconds for fit in slowest]
    assert sum(seconds) + sum(again) < gpu.BUDGET_SECONDS


@pytest.mark.thorough  # than gpu_check/test_on_cpu
@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "gpu_results.csv")
    assert gpu.main() == []
    assert "no GPU" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
