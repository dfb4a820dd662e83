"""Offloading activations changes no bit of a training; what goes, what stays, and that nothing is left behind."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.errors import InfeasiblePlan
from tests.messages import refused
from tests.train_core.conftest import ALONE, ExperimentOf, Worlds
from tests.train_core.parallel.test_pointwise import IN_STAGES, LLAMA, SHARDED, SMALL, SPLIT, bits_of
from train_core.parallel.offload import HostMemory
from train_core.training.trainer import Trainer, TrainerParts

ON = {"parallel.offload_activations": True}
EXPERTS = {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 16, "shared_ffn_hidden_size": 0, "balance_loss": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "gpt, full, dropping": {"parallel.recompute": "full", "training.dropout": 0.1},
    "llama, bf16, selective": LLAMA | {"precision.dtype": "bf16", "parallel.recompute": "selective"},
    "sequence parallel": SPLIT,
    "interleaved": LLAMA
    | IN_STAGES
    | {"parallel.schedule": "interleaved", "parallel.virtual_pipeline_size": 2}
    | {"model.num_layers": 8},
    "ZeRO-3, every second layer": LLAMA | SHARDED | {"parallel.recompute": "full", "parallel.recompute_every": 2},
    "experts": LLAMA | {"model.experts": EXPERTS, "parallel.expert_tensor_parallel_size": 1},
}


class Ledger(HostMemory):
    """Says what was taken, of which storage, and how often something was given back."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.storages: list[weakref.ref[torch.UntypedStorage]] = []
        self.addresses: set[int] = set()
        self.num_given_back = 0

    def take(self, flat: Tensor) -> Any:
        storage = flat.untyped_storage()
        self.taken.append(flat.numel())
        self.storages.append(weakref.ref(storage))
        self.addresses.add(storage.data_ptr())
        return super().take(flat)

    def give_back(self, there: Any, device: torch.device) -> Tensor:
        self.num_given_back += 1
        return super().give_back(there, device)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES)
def test_a_training_comes_to_the_same_bits_as_without(
    case: str, experiment_of: ExperimentOf, worlds: Worlds, tmp_path: Path
) -> None:
    values = SMALL | CASES[case]
    experiments = experiment_of(values), experiment_of(values | ON)
    assert all(worlds(values.get("parallel.world_size", 1)).run(bits_of, experiments, tmp_path))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_a_layer_keeps_goes_once_and_comes_back_once_and_parameters_stay(
    recompute: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """Of full recomputation the inputs of all layers but the first go."""
    ledger = Ledger()
    values = SMALL | ON | {"model.num_layers": 3, "batch.global_batch_size": 1, "parallel.recompute": recompute}
    trainer = Trainer(experiment_of(values), ALONE, tmp_path, TrainerParts(host=ledger))
    trainer.step(1)
    assert ledger.num_given_back == len(ledger.taken) >= 2
    parameters = {parameter.untyped_storage().data_ptr() for _, parameter in trainer.stage.named_parameters()}
    assert parameters.isdisjoint(ledger.addresses)
    if recompute == "full":
        model = trainer.experiment.model
        assert ledger.taken == [model.seq_length * model.hidden_size] * 2


def test_a_layer_that_has_run_holds_nothing_on_the_device(experiment_of: ExperimentOf, tmp_path: Path) -> None:
    ledger = Ledger()
    trainer = Trainer(experiment_of(SMALL | ON), ALONE, tmp_path, TrainerParts(host=ledger))
    layer = trainer.stage.chunks[0].layers["1"]
    out = layer(torch.randn(32, 1, 32, requires_grad=True) * 1)
    assert len(ledger.storages) > 5
    assert all(storage() is None for storage in ledger.storages)
    out.sum().backward()
    assert ledger.num_given_back == len(ledger.taken)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"parallel.recompute": "pointwise"}, "parallel.recompute"),
        (IN_STAGES, "parallel.schedule"),
        ({"training.compile_layers": True}, "parallel.offload_activations"),
    ],
)
def test_what_keeps_tensors_by_itself_is_refused(values: dict[str, Any], key: str, experiment_of: ExperimentOf) -> None:
    with refused(InfeasiblePlan, key):
        experiment_of(SMALL | ON | values)
