"""Muon: the momentum of a matrix, made nearly orthogonal, is its update. Replicas share out the matrices.

A matrix has to be whole to be made orthogonal, wherever ZeRO and tensor ranks hold its parts:

    momentum    this rank's elements of a bucket, under ZeRO a shard
    gather      the shards of all replicas: the bucket as this tensor rank has it
    gather      of each matrix that the shard has elements of, the parts of all tensor ranks
    multiply    each of those matrices is made orthogonal here
    keep        this rank's elements

So a replica multiplies no more than the matrices that its shard touches. Under ZeRO-0 and 3 every one does all: nothing
is shared out under the former, and under the latter each has rows of every matrix. Tensor ranks all multiply the whole
matrix. Queries, keys and values are one matrix, as are a gate and what it gates; each expert has its own.

Source: arXiv 2502.16982, algorithm 1; Keller Jordan et al., Muon, 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from conf.types.model_spec import ExpertsSpec
from conf.types.schema import TrainingPlan
from costs.axes import EXPERT
from costs.shared_rules import NEWTON_SCHULZ_STEPS
from train_core.parallel.collectives import all_gather, shard
from train_core.parallel.data_parallel import Replicas

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the polynomial a x + b x^3 + c x^5, which takes all singular values near 1 in few steps. Source: Jordan et al."""
RMS_OF_ADAM = 0.2
"""The root mean square of AdamW's updates, to which those of Muon are scaled, so that rates and decays that are good
for one are good for the other. Source: arXiv 2502.16982, section 2.2."""
SMALLEST_NORM = 1e-7


class PlacedMatrix(NamedTuple):
    """A matrix in a part of the weights.

    Attributes:
        start: its first element in the bucket.
        rows, columns: those that this tensor rank has.
        split: the dim that tensor ranks share out; None where each has the whole.
    """

    start: int
    rows: int
    columns: int
    split: int | None

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns


class MuonState:
    """Holds the fp32 masters and the momentum for one flat part of the weights (n), which is of matrices alone."""

    def __init__(
        self, weights: Tensor, replicas: Replicas, index: int, dtype: torch.dtype, experts: ExpertsSpec | None
    ) -> None:
        """Take the weights as masters, or copy them as such.

        Args:
            index: of the part among those of `replicas`.
            dtype: in which matrices are multiplied.
            experts: of the model.
        """
        self.masters = weights.float()
        self.momentum = torch.zeros_like(self.masters)
        self.replicas, self.index, self.dtype = replicas, index, dtype
        self.matrices = list(_matrices(replicas, index, experts))

    def update(
        self, gradients: Tensor, num_updates: Tensor, learning_rate: float, weight_decay: float, plan: TrainingPlan
    ) -> None:
        """One step with fp32 gradients, which are used up."""
        self.momentum.mul_(plan.muon_momentum).add_(gradients)
        looking_ahead = gradients.add_(self.momentum, alpha=plan.muon_momentum)  # Nesterov's
        whole, update = self.replicas.whole(self.index, looking_ahead), torch.zeros_like(self.masters)
        held = self.replicas.own_range(self.index)
        for matrix in self.matrices:
            first, stop = max(held.start, matrix.start), min(held.stop, matrix.stop)
            if first < stop:
                part = self._orthogonal(whole[matrix.start : matrix.stop].view(matrix.rows, matrix.columns), matrix)
                elements = part.reshape(-1)[first - matrix.start : stop - matrix.start]
                update[first - held.start : stop - held.start] = elements
        self.masters.mul_(1 - learning_rate * weight_decay).add_(update, alpha=-learning_rate)

    def _orthogonal(self, part: Tensor, matrix: PlacedMatrix) -> Tensor:
        """This tensor rank's part of a matrix, from the parts of all."""
        tensor = self.replicas.mesh.tensor
        if matrix.split is None or tensor.size == 1:
            return orthogonal(part, self.dtype)
        turned = part if matrix.split == 0 else part.t()
        own = shard(orthogonal(all_gather(turned.contiguous(), tensor).wait(), self.dtype), tensor)
        return own if matrix.split == 0 else own.t()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint keeps of it, by name."""
        return {"weights": self.masters, "momentum": self.momentum}

    def write_to(self, weights: Tensor) -> None:
        if weights.dtype != self.masters.dtype:
            weights.copy_(self.masters)


def _matrices(replicas: Replicas, index: int, experts: ExpertsSpec | None) -> Iterator[PlacedMatrix]:
    """The matrices of a part, in order."""
    for name, shape, start in replicas.members(index):
        splits, number, (rows, columns) = replicas.stage.placements[name].splits, 1, shape
        if ".experts." in name and experts is not None:
            number = experts.num_experts // replicas.mesh.axis(EXPERT).size
        each = rows // number
        for expert in range(number):
            yield PlacedMatrix(start + expert * each * columns, each, columns, splits.get("tensor"))


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """U V^T of a matrix U S V^T in fp32, nearly, scaled to the size of AdamW's updates. Zeros stay zeros."""
    is_tall = matrix.size(0) > matrix.size(1)
    x = matrix.t() if is_tall else matrix
    x = (x / (torch.linalg.vector_norm(x) + SMALLEST_NORM)).to(dtype)
    a, b, c = COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.t()
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    scaled = x.float().mul_(RMS_OF_ADAM * max(matrix.shape) ** 0.5)  # in place: a matrix may be a large part of memory
    return scaled.t() if is_tall else scaled
