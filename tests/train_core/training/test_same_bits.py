"""Ranks that hold the same values hold the same bits, also over three replicas, whose sums depend on their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from conf.plan.experiment import Experiment
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.checkpoints.boxes import own_boxes
from train_core.process.world import World
from train_core.training.trainer import Trainer
from train_core.watch.agreement import require_equal_replicas

SAVED_STEP, NUM_STEPS = 2, 3
SIX: dict[str, object] = {
    "parallel.world_size": 6,
    "model.num_layers": 2,
    "batch.global_batch_size": 6,
    "training.num_steps": NUM_STEPS,
    "checkpoint.every_steps": SAVED_STEP,
}
TENSOR: dict[str, object] = {"parallel.tensor_parallel_size": 2}
PIPELINE: dict[str, object] = {"parallel.pipeline_parallel_size": 2}
LAYOUTS: dict[str, dict[str, object]] = {
    "tp2 dp3": TENSOR,
    "tp2 dp3 ZeRO-1": TENSOR | {"parallel.zero_stage": 1},
    "tp2 dp3 ZeRO-2": TENSOR | {"parallel.zero_stage": 2},
    "tp2 dp3 ZeRO-3": TENSOR | {"parallel.zero_stage": 3},
    "tp2 dp3 sequence": TENSOR | {"parallel.sequence_parallel": True},
    "tp2 dp3 bf16": TENSOR | {"parallel.zero_stage": 1, "precision.dtype": "bf16"},
    "pp2 dp3": PIPELINE,
    "pp2 dp3 ZeRO-1": PIPELINE | {"parallel.zero_stage": 1},
}


class Held(NamedTuple):
    """Which values of the whole model and its optimizer: weights or moments of a box of a parameter."""

    kind: str
    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


Digests = dict[Held, str]


def digests_of(trainer: Trainer) -> Digests:
    """Of the bits of everything that this rank updates."""
    return {
        Held(kind, box.name, box.offsets, box.sizes): sha256(box.of(flat).detach().numpy().tobytes()).hexdigest()
        for state, boxes in zip(trainer.optimizer.states, own_boxes(trainer.replicas), strict=True)
        for kind, flat in state.tensors().items()
        for box in boxes
    }


def uninterrupted_and_resumed(
    world: World, experiments: Mapping[str, Experiment], folder: Path
) -> dict[str, tuple[Digests, Digests]]:
    """What this rank has in the end, without an interruption and when it goes on from a checkpoint."""
    return {name: _both(world, experiment, folder / name) for name, experiment in experiments.items()}


def _both(world: World, experiment: Experiment, folder: Path) -> tuple[Digests, Digests]:
    trainer = Trainer(experiment, world, folder / "tokens")
    with trainer.checkpoints(folder / "checkpoints") as checkpoints:
        for step in range(1, NUM_STEPS + 1):
            trainer.step(step)
            if experiment.parallel.zero_stage < 3:
                require_equal_replicas(trainer.stage, trainer.mesh, step)
            if step == SAVED_STEP:
                checkpoints.save(step)
    resumed = Trainer(experiment, world, folder / "tokens")
    with resumed.checkpoints(folder / "checkpoints") as checkpoints:
        assert checkpoints.restore() == SAVED_STEP
    for step in range(SAVED_STEP + 1, NUM_STEPS + 1):
        resumed.step(step)
    return digests_of(trainer), digests_of(resumed)


@pytest.mark.thorough  # than watch/test_agreement and test_resume
@pytest.mark.slow
def test_what_several_of_six_ranks_hold_has_the_same_bits_and_a_resumed_training_comes_to_them_again(
    worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """Also the two copies of a tied embedding, on the first and the last stage."""
    experiments = {name: experiment_of(SIX | values) for name, values in LAYOUTS.items()}
    told = worlds(6).run(uninterrupted_and_resumed, experiments, tmp_path)
    for name in LAYOUTS:
        found = defaultdict[Held, set[str]](set)
        for of_rank in told:
            uninterrupted, resumed = of_rank[name]
            assert resumed == uninterrupted, f"{name}: a resumed training differs"
            for held, digest in uninterrupted.items():
                found[held].add(digest)
        differing = [held for held, digests in found.items() if len(digests) > 1]
        assert not differing, f"{name}: ranks differ in {differing}"
