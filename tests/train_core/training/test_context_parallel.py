"""Context ranks, which share out the tokens of every sequence, train like the oracle, which knows one rank alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.train_core.conftest import ExperimentOf, Worlds
from tests.train_core.training.layouts import Layout
from tests.train_core.training.oracle import train
from tests.train_core.training.test_random_layouts import assembled, require_like, train_and_tell

LAYOUTS = [
    Layout(1, 1, 1, context=2),
    Layout(1, 1, 1, context=2, recompute=("selective", 1), family="llama"),
    Layout(1, 1, 1, context=4, recompute=("pointwise", 2)),
    Layout(1, 1, 1, context=8, family="llama"),
    Layout(2, 1, 1, context=2, family="llama"),
    Layout(2, 1, 2, context=2, sequence_parallel=True, zero_stage=1),
    Layout(1, 1, 1, context=2, zero_stage=3, recompute=("full", 1)),
    Layout(1, 1, 2, context=4, zero_stage=2, family="llama"),
    Layout(2, 1, 1, context=4, zero_stage=3, sequence_parallel=True, family="llama"),
    Layout(1, 2, 1, "1f1b", context=2, recompute=("full", 2)),
    Layout(1, 2, 2, "zero-bubble", context=2, zero_stage=2),
    Layout(2, 2, 1, "interleaved", context=2, sequence_parallel=True, recompute=("full", 1)),
    Layout(1, 2, 1, "gpipe", context=4, zero_stage=1, family="llama"),
]


@pytest.mark.one_in(9)
@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["ring", "gather"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(map(str, layout[:7])))
def test_context_ranks_train_like_the_oracle(
    layout: Layout, exchange: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    experiment = experiment_of(
        layout._replace(context_exchange=exchange).values() | {"model.seq_length": 48, "data.source": "synthetic"}
    )
    measured = assembled(worlds(layout.num_ranks).run(train_and_tell, experiment, tmp_path))
    require_like(measured, train(experiment, torch.float64))
