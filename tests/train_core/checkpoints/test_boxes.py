"""Buckets of any shapes and sizes: nothing is lost, nothing is there twice, and the update is torch's AdamW."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from costs.axes import REPLICAS, Layout
from costs.shared_rules import ALIGNMENT
from train_core.checkpoints.boxes import boxes_of, row_boxes
from train_core.optimizers.adam import AdamState
from train_core.parallel.collectives import Axis
from train_core.parallel.data_parallel import Bucket, flatten
from train_core.parallel.groups import build_mesh
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Placement

SHAPES = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=2).map(tuple), min_size=1, max_size=8)


def stage_of(shapes: list[tuple[int, ...]], copied_over: tuple[str, ...] = ()) -> Any:
    """A stage with parameters of these shapes, numbered through."""
    chunk = nn.ParameterDict({str(index): torch.randn(shape) for index, shape in enumerate(shapes)})
    chunk.__dict__["spec"] = SimpleNamespace(tied_embeddings=False)  # an entry of the chunk itself would be a parameter
    named = list(chunk.named_parameters())
    placements = {name: Placement(name, copied_over=copied_over) for name, _ in named}
    return SimpleNamespace(chunks=(chunk,), placements=placements, named_parameters=lambda: named)


def mesh_of(num_replicas: int) -> Mesh:
    """Of rank 0; no group is needed to lay buckets out."""
    mesh = build_mesh(Layout({}), 0)
    return replace(mesh, axes={**mesh.axes, REPLICAS: Axis(num_replicas)})


@given(shape=SHAPES.map(lambda shapes: shapes[0]), cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_rows_cover_a_run_of_elements_in_order(shape: tuple[int, ...], cuts: tuple[float, float]) -> None:
    first, stop = (round(cut * prod(shape)) for cut in sorted(cuts))
    elements = np.arange(prod(shape)).reshape(shape)
    boxes = list(row_boxes(shape, first, stop))
    parts = [
        elements[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))].flatten()
        for offsets, sizes in boxes
    ]
    assert np.concatenate([*parts, []]).tolist() == list(range(first, stop))
    assert len(boxes) <= 3


@given(shapes=SHAPES, num_replicas=st.integers(1, 5), max_elements=st.integers(1, 2000))
def test_shards_hold_every_element_of_every_parameter_once(
    shapes: list[tuple[int, ...]], num_replicas: int, max_elements: int
) -> None:
    stage, mesh = stage_of(shapes), mesh_of(num_replicas)
    expected = {name: parameter.detach().clone() for name, parameter in stage.named_parameters()}
    seen = {name: torch.full(parameter.shape, torch.nan) for name, parameter in expected.items()}
    for bucket in flatten(stage, mesh, max_elements=max_elements):
        assert sum(member.parameter.numel() for member in bucket.members) <= max_elements or len(bucket.members) == 1
        assert len(bucket.weights) % (ALIGNMENT * num_replicas) == 0
        for shard in bucket.weights.chunk(num_replicas):
            start = int(shard.storage_offset())
            held = range(start, start + len(shard))
            for box in (box for member in bucket.members for box in boxes_of(member, held, start, stage, mesh)):
                where = tuple(slice(first, first + size) for first, size in zip(box.offsets, box.sizes, strict=True))
                assert seen[box.name][where].isnan().all(), "an element is in two shards"
                seen[box.name][where] = box.of(shard)
    for name, parameter in stage.named_parameters():
        assert torch.equal(seen[name], expected[name])
        assert torch.equal(parameter.detach(), expected[name]), "the parameter is a view of its bucket"


def test_all_tensor_ranks_have_equal_buckets() -> None:
    """Also of what each holds whole, which only the first counts in the norm of the gradient."""
    stage = stage_of([(40, 8), (40,), (8, 20), (8,), (8,)], copied_over=("tensor",))
    for index in (0, 1, 2):
        stage.placements[str(index)] = Placement(str(index), {"tensor": 0})
    of_ranks = []
    for rank in range(3):
        mesh = mesh_of(3)
        mesh = replace(mesh, axes={**mesh.axes, ("tensor",): Axis(3, rank)})
        buckets = [(bucket.treatment, [member[::2] for member in bucket.members]) for bucket in flatten(stage, mesh)]
        of_ranks.append(buckets)
        counted = [mesh.counts(treatment) for treatment, _ in buckets]
        assert counted == [True, rank == 0, True], "biases that are split, those that are whole, matrices"
    assert of_ranks[0] == of_ranks[1] == of_ranks[2]


def updated_in_buckets(buckets: list[Bucket], plan: Any, gradients: list[dict[str, torch.Tensor]]) -> None:
    states = [AdamState(bucket.weights) for bucket in buckets]
    for count, of_step in enumerate(gradients, start=1):
        for bucket, state in zip(buckets, states, strict=True):
            for member in bucket.members:
                member.of(bucket.gradients).copy_(of_step[member.name])
            weight_decay = 0.1 if bucket.treatment.decays else 0.0
            state.update(bucket.gradients, torch.tensor(float(count)), 1e-2, weight_decay, plan)


@settings(max_examples=30)
@given(shapes=SHAPES, max_elements=st.integers(1, 2000))
def test_three_updates_are_those_of_torchs_adamw(shapes: list[tuple[int, ...]], max_elements: int) -> None:
    stage, plan = stage_of(shapes), SimpleNamespace(adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8)
    names = [name for name, _ in stage.named_parameters()]
    plain = {name: parameter.detach().clone().requires_grad_() for name, parameter in stage.named_parameters()}
    groups = [
        {"params": [plain[name] for name in names if (plain[name].dim() > 1) == decays], "weight_decay": decay}
        for decays, decay in ((True, 0.1), (False, 0.0))
    ]
    adam = torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    gradients = [{name: torch.randn_like(plain[name]) for name in names} for _ in range(3)]
    for of_step in gradients:
        for name in names:
            plain[name].grad = of_step[name]
        adam.step()
    updated_in_buckets(list(flatten(stage, mesh_of(1), max_elements=max_elements)), plan, gradients)
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.detach(), plain[name].detach(), rtol=1e-5, atol=1e-6)
