"""What selective recomputation repeats of attention on a CPU, counted while real ranks train."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

from conf.plan.experiment import Experiment
from costs import executed_flops
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.process.world import World
from train_core.training.trainer import Trainer

WIDE_VALUES: dict[str, object] = {
    "model.family": "llama",
    "model.gated_mlp": True,
    "model.tied_embeddings": False,
    "model.head_size": 12,
    "model.latent_attention": {"query_rank": 16, "key_value_rank": 20, "rotary_head_size": 4, "value_head_size": 20},
}
FEW: dict[str, object] = {"model.num_layers": 2, "batch.global_batch_size": 2}
"""Layers and micro-batches, for each of which the same is repeated."""

CASES: dict[str, dict[str, object]] = {
    "dropout": {"training.dropout": 0.1},
    "dropout on two tensor ranks": {
        "training.dropout": 0.1,
        "parallel.world_size": 2,
        "parallel.tensor_parallel_size": 2,
    },
    "wide values": WIDE_VALUES,
}


def counted(world: World, experiment: Experiment, folder: Path) -> int:
    trainer = Trainer(experiment, world, folder)
    with FlopCounterMode(display=False) as counter:
        trainer.passes(1)
    return counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
def test_a_repeated_core_stops_before_its_last_product(
    case: str, worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    flops, predicted = [], []
    for recompute in ("selective", "none"):
        experiment = experiment_of(FEW | CASES[case] | {"parallel.recompute": recompute})
        flops.append(sum(worlds(experiment.parallel.world_size).run(counted, experiment, tmp_path)))
        predicted.append(executed_flops(experiment))
    assert flops[0] - flops[1] == predicted[0] - predicted[1] > 0
