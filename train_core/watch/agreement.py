"""Ranks that hold the same weights must hold the same bits: checksums find a replica that has diverged."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from conf.errors import TrainingError
from train_core.parallel.collectives import Axis, all_gather
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage
from train_core.watch.hang import ranks_text

INTEGERS = {4: torch.int32, 2: torch.int16}
"""By the size of an element. Sums of floats would round small differences away; sums of integers keep them."""


def require_equal_replicas(stage: Stage, mesh: Mesh, step: int) -> None:
    """Compare every parameter over the data axis, and over the tensor axis those that each of its ranks holds whole.

    Raises:
        TrainingError: some ranks differ; names them and the first such parameter.
    """
    named = stage.named_parameters()
    sums = torch.stack([checksum(parameter) for _, parameter in named])  # (parameters)
    names = [name for name, _ in named]
    whole = [index for index, name in enumerate(names) if stage.placements[name].split_dim is None]
    # Both are gathered before either is judged, because whoever raises would leave the others waiting.
    over_data, over_tensor = _gathered(sums, mesh.data), _gathered(sums[whole], mesh.tensor)
    _judge(names, over_data, mesh.data, step)
    _judge([names[index] for index in whole], over_tensor, mesh.tensor, step)


def checksum(values: Tensor) -> Tensor:
    """The sum of the elements, whose bits are taken for integers: any single flipped bit changes it."""
    return values.detach().contiguous().view(INTEGERS[values.element_size()]).sum(dtype=torch.int64)


def _gathered(sums: Tensor, axis: Axis) -> Tensor:
    """The sums of all ranks of an axis: (parameters) -> (ranks, parameters)."""
    return all_gather(sums[None], axis).wait()


def _judge(names: list[str], of_ranks: Tensor, axis: Axis, step: int) -> None:
    differing = (of_ranks != of_ranks[0]).any(dim=0).nonzero().flatten().tolist()
    if not differing:
        return
    assert axis.line is not None
    first = differing[0]
    told = dict(zip(axis.line.ranks, of_ranks[:, first].tolist(), strict=True))
    (common, count), *_ = Counter(told.values()).most_common()
    # The majority is taken to be right. Where there is none, all ranks are named.
    odd = [rank for rank, value in told.items() if value != common]
    who = f"{ranks_text(odd)} differ{'s' * (len(odd) == 1)} from {ranks_text(told.keys() - set(odd))}"
    if 2 * count <= axis.size:
        who = f"{ranks_text(told)} differ"
    raise TrainingError(
        f"the weights diverged by step {step} over the {axis.line.name} axis: {who}, first in {names[first]}",
        "Suspect a device or link of these ranks: leave its node out, and go on from a checkpoint before this step.",
    )
