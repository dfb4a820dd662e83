"""Dropout draws the same masks in every layout; where ranks hold parts of a sequence, each draws its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conf.plan.experiment import Experiment
from conf.types.schema import Value
from tests.train_core.conftest import ExperimentOf, Worlds
from train_core.model.attention import CausalAttention
from train_core.model.dropout import AttentionWithDropout, Dropping, Randomness, SeededDropout
from train_core.process.world import World
from train_core.training.trainer import Trainer

NUM_STEPS = 2
DROPPING: dict[str, Value] = {
    "training.dropout": 0.2,
    "model.num_layers": 2,
    "batch.global_batch_size": 4,
    "batch.micro_batch_size": 1,
    "training.num_steps": NUM_STEPS,
    "training.adam_epsilon": 1e-3,
    "data.source": "synthetic",
}
LLAMA: dict[str, Value] = {"model.family": "llama", "model.num_query_groups": 2, "model.gated_mlp": True}
PIPELINE: dict[str, Value] = {"parallel.world_size": 2, "parallel.pipeline_parallel_size": 2}
LAYOUTS: dict[str, dict[str, Value]] = {
    "replicas": {"parallel.world_size": 2},
    "pipeline": PIPELINE,
    "pipeline, weight gradients put off, attention repeated": PIPELINE
    | {"parallel.schedule": "zero-bubble", "parallel.recompute": "selective"},
    "tensor": {"parallel.world_size": 2, "parallel.tensor_parallel_size": 2},
    "tensor, layers repeated": {
        "parallel.world_size": 2,
        "parallel.tensor_parallel_size": 2,
        "parallel.recompute": "full",
    },
}


def losses_of(world: World, experiments: list[Experiment], cache_dir: Path) -> list[list[float]]:
    trainers = [Trainer(experiment, world, cache_dir) for experiment in experiments]
    return [[trainer.step(step).loss for step in range(1, NUM_STEPS + 1)] for trainer in trainers]


def losses_in_one_call(world: World, experiments: list[Experiment], cache_dir: Path) -> list[list[float]]:
    """All heads of a rank are one call, as on a GPU, by a CPU's kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train_core.model.dropout.takes_all_heads", lambda query: True)
        return losses_of(world, experiments, cache_dir)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("family", [{}, LLAMA], ids=["gpt", "llama"])
def test_a_layout_drops_what_one_rank_drops(
    family: dict[str, Value], worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    values = DROPPING | family
    alone = [experiment_of(values), experiment_of(values | {"parallel.recompute": "full"})]
    ((expected, repeated),) = worlds(1).run(losses_of, alone, tmp_path)
    assert repeated == expected
    answers = worlds(2).run(losses_of, [experiment_of(values | layout) for layout in LAYOUTS.values()], tmp_path)
    for name, measured in zip(LAYOUTS, answers[0], strict=True):
        np.testing.assert_allclose(measured, expected, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("family", [{}, LLAMA], ids=["gpt", "llama"])
def test_a_gpus_one_call_for_all_heads_drops_the_same_in_every_schedule_and_recomputation(
    family: dict[str, Value], worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path
) -> None:
    """And with any number of replicas; tensor ranks each seed a call of their own."""
    values = DROPPING | family
    repeated = ("none", "selective", "full")
    alone = [experiment_of(values | {"parallel.recompute": recompute}) for recompute in repeated]
    ((expected, *others),) = worlds(1).run(losses_in_one_call, alone, tmp_path)
    assert others == [expected, expected]
    layouts = {name: layout for name, layout in LAYOUTS.items() if not name.startswith("tensor")}
    split = [experiment_of(values | layout) for layout in layouts.values()]
    answers = worlds(2).run(losses_in_one_call, split, tmp_path)
    for name, measured in zip(layouts, answers[0], strict=True):
        np.testing.assert_allclose(measured, expected, rtol=1e-5, err_msg=name)


def test_dropout_changes_the_losses(worlds: Worlds, experiment_of: ExperimentOf, tmp_path: Path) -> None:
    both = [experiment_of(DROPPING), experiment_of(DROPPING | {"training.dropout": 0.0})]
    ((dropped, whole),) = worlds(1).run(losses_of, both, tmp_path)
    assert dropped[0] != pytest.approx(whole[0], rel=1e-5)


def test_under_sequence_parallelism_each_rank_drops_elements_of_its_own(
    worlds: Worlds, experiment_of: ExperimentOf
) -> None:
    sequence: dict[str, Value] = {
        "parallel.tensor_parallel_size": 2,
        "parallel.world_size": 2,
        "parallel.sequence_parallel": True,
    }
    masks = worlds(2).run(embedding_masks, experiment_of(DROPPING | sequence))
    assert not torch.equal(*masks)
    shared = worlds(2).run(embedding_masks, experiment_of(DROPPING | sequence | {"parallel.sequence_parallel": False}))
    assert torch.equal(*shared)


def embedding_masks(world: World, experiment: Experiment) -> torch.Tensor:
    from costs.axes import Layout
    from train_core.parallel.groups import build_mesh
    from train_core.parallel.parallelize import parallelize

    stage = parallelize(experiment, build_mesh(Layout.of(experiment), world.rank, world.clock), world.device)
    embedding = stage.chunks[0].embedding
    assert embedding
    assert embedding.dropout
    dropped: Tensor = embedding.dropout(torch.ones(64, 8, requires_grad=True))
    return dropped.detach()


def test_dropout_keeps_the_mean_and_one_byte_an_element() -> None:
    randomness = Randomness(seed=1, first_sequence=0, micro_batch_size=1)
    dropout, x = SeededDropout("site", 0, Dropping(0.25, randomness)), torch.ones(400, 100, requires_grad=True)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = dropout(x)
    assert sum(tensor.nbytes for tensor in kept) == x.numel()
    assert float(out.detach().mean()) == pytest.approx(1.0, abs=0.02)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())
    randomness.step = 1
    assert not torch.equal(dropout(x).detach(), out.detach()), "the same mask in another step"
    with torch.no_grad():
        assert torch.equal(dropout(x), x), "dropped in an evaluation"


def test_dropped_scores_leave_the_mean_of_attention(experiment_of: ExperimentOf) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(1, count, 6, 4, generator=generator) for count in (4, 2, 2)]
    expected, total = CausalAttention()(*heads), torch.zeros(6, 1, 16)
    randomness = Randomness(1, 0, 1)
    dropping = AttentionWithDropout("site", 0, Dropping(0.3, randomness))
    for step in range(400):
        randomness.step = step
        total += dropping(*heads)
    torch.testing.assert_close(total / 400, expected, rtol=0, atol=0.25)
    with torch.no_grad():
        torch.testing.assert_close(dropping(*heads), expected)
