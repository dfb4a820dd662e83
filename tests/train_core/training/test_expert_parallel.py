"""Experts, on one rank and spread over many, train like the oracle, which sends every token through all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import Layout, mixture_with
from tests.train_core.training.oracle import train
from tests.train_core.training.test_random_layouts import assembled, require_like, train_and_tell

LAYOUTS = [
    Layout(1, 1, 1),
    Layout(1, 1, 2),
    Layout(1, 1, 2, expert=2),
    Layout(1, 1, 4, expert=4, zero_stage=1),
    Layout(1, 1, 4, expert=2, zero_stage=2, recompute=("full", 1)),
    Layout(1, 1, 8, expert=8, recompute=("selective", 1)),
    Layout(2, 1, 1, sequence_parallel=True),
    Layout(2, 1, 1, sequence_parallel=True, expert=2),
    Layout(2, 1, 1, sequence_parallel=True, zero_stage=1),  # only experts have replicas
    Layout(4, 1, 1, sequence_parallel=True, expert=2, zero_stage=2),
    Layout(2, 2, 1, sequence_parallel=True, zero_stage=2),
    Layout(2, 1, 2, sequence_parallel=True, expert=4, zero_stage=1),
    Layout(2, 1, 4, sequence_parallel=True, expert=4, zero_stage=2),
    Layout(1, 1, 1, context=2, expert=2),
    Layout(2, 1, 2, context=2, sequence_parallel=True, expert=4, zero_stage=1),
    Layout(1, 2, 2, "1f1b", expert=2, recompute=("full", 2)),
    Layout(1, 2, 4, "zero-bubble", expert=2, zero_stage=2),
    Layout(2, 2, 2, "interleaved", sequence_parallel=True, expert=2, zero_stage=1),
    Layout(1, 4, 2, "gpipe", expert=2),
]


BALANCED = [
    Layout(1, 1, 1),
    Layout(1, 1, 2, expert=2, zero_stage=1),
    Layout(2, 1, 2, sequence_parallel=True, expert=2, recompute=("full", 1)),
    Layout(1, 2, 1, "zero-bubble", context=2, expert=2),
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("layout", BALANCED, ids=lambda layout: f"{layout.num_ranks} ranks")
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_biases_of_routers_move_against_the_load_in_every_layout(
    scores: str, layout: Layout, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """The oracle's biases are among its weights."""
    balanced = mixture_with(balance_bias=0.01, scores=scores) | {"model.num_layers": layout.num_layers}
    experiment = experiment_of(layout._replace(family="mixture").values() | balanced | {"data.source": "synthetic"})
    measured = assembled(worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path))
    assert any(name.endswith("router.bias") for name in measured.weights)
    require_like(measured, train(experiment, torch.float64))


GROUPED = [
    Layout(1, 1, 1),
    Layout(1, 1, 4, expert=4, zero_stage=1),
    Layout(2, 1, 1, sequence_parallel=True, expert=2, recompute=("full", 1)),
    Layout(1, 2, 1, "1f1b", context=2, expert=2),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", GROUPED, ids=lambda layout: f"{layout.num_ranks} ranks, context {layout.context}")
def test_groups_of_experts_and_their_scale_are_the_same_in_every_layout(
    layout: Layout, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """Four groups of two, of which a token takes two, as DeepSeek-V3 takes four of eight."""
    grouped = {"scores": "sigmoid", "balance_bias": 0.01, "routed_scale": 2.5, "num_groups": 4, "top_groups": 2}
    values = mixture_with(**grouped, top_k=3) | {"model.num_layers": layout.num_layers}
    experiment = experiment_of(layout._replace(family="mixture").values() | values | {"data.source": "synthetic"})
    measured = assembled(worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path))
    require_like(measured, train(experiment, torch.float64))


LIMITED = [
    Layout(1, 1, 1),
    Layout(1, 1, 2, expert=2),
    Layout(2, 1, 1, sequence_parallel=True, context=2, expert=2, zero_stage=1, recompute=("full", 1)),
    Layout(1, 2, 1, "1f1b", context=2, expert=2),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", LIMITED, ids=lambda layout: f"{layout.num_ranks} ranks, context {layout.context}")
def test_a_capacity_drops_the_same_tokens_in_every_layout(
    layout: Layout, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    limited = mixture_with(capacity_factor=1.0) | {"model.num_layers": layout.num_layers}
    experiment = experiment_of(layout._replace(family="mixture").values() | limited | {"data.source": "synthetic"})
    measured = assembled(worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path))
    require_like(measured, train(experiment, torch.float64))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda layout: f"{'-'.join(map(str, layout[:7]))}-{layout.context}-{layout.expert}"
)
def test_experts_train_like_the_oracle(
    layout: Layout, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(layout._replace(family="mixture").values() | {"data.source": "synthetic"})
    measured = assembled(worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path))
    require_like(measured, train(experiment, torch.float64))
