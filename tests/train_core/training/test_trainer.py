"""A process that trains again and again does not keep what it has trained."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from tests.train_core.conftest import ALONE, ExperimentOf
from train_core.training.trainer import Trainer

CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "Muon": {"training.optimizer": "muon"},
    "dropout": {"training.dropout": 0.1},
    "offloaded": {"parallel.offload_activations": True},
    "recomputed": {"parallel.recompute": "full"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_trainer_that_nobody_has_is_gone_with_its_weights_and_groups(
    case: str, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    trainer = Trainer(experiment_of({"model.num_layers": 1, "data.source": "synthetic"} | CASES[case]), ALONE, tmp_path)
    trainer.step(1)
    parameter = next(trainer.replicas.stage.chunks[0].parameters())
    kept = [weakref.ref(each) for each in (trainer, trainer.replicas.mesh, trainer.replicas, parameter)]
    del trainer, parameter
    while gc.collect():  # what torch lets go may have led to further cycles
        pass
    assert [ref() for ref in kept] == [None] * len(kept)
