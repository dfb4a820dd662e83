"""Experts, on one rank and spread over many, train like the oracle, which sends every token through all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import Layout
from tests.train_core.training.oracle import train
from tests.train_core.training.test_random_layouts import TOLERANCE, assembled, distances, train_and_tell

LAYOUTS = [
    Layout(1, 1, 1),
    Layout(1, 1, 2),
    Layout(1, 1, 2, expert=2),
    Layout(1, 1, 4, expert=4, zero_stage=1),
    Layout(1, 1, 4, expert=2, zero_stage=2, recompute=("full", 1)),
    Layout(1, 1, 8, expert=8, recompute=("selective", 1)),
    Layout(2, 1, 1, sequence_parallel=True),
    Layout(2, 1, 1, sequence_parallel=True, expert=2),
    Layout(2, 1, 2, sequence_parallel=True, expert=4, zero_stage=1),
    Layout(2, 1, 4, sequence_parallel=True, expert=4, zero_stage=2),
    Layout(1, 1, 1, context=2, expert=2),
    Layout(2, 1, 2, context=2, sequence_parallel=True, expert=4, zero_stage=1),
    Layout(1, 2, 2, "1f1b", expert=2, recompute=("full", 2)),
    Layout(1, 2, 4, "zero-bubble", expert=2, zero_stage=2),
    Layout(2, 2, 2, "interleaved", sequence_parallel=True, expert=2, zero_stage=1),
    Layout(1, 4, 2, "gpipe", expert=2),
]


@pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda layout: f"{'-'.join(map(str, layout[:7]))}-{layout.context}-{layout.expert}"
)
def test_experts_train_like_the_oracle(
    layout: Layout, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(layout._replace(family="mixture").values() | {"data.source": "synthetic"})
    measured = assembled(worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path))
    far = distances(measured, train(experiment, torch.float64))
    assert max(far.values()) < TOLERANCE, {name: distance for name, distance in far.items() if distance >= TOLERANCE}
