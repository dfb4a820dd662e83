"""Muon: the momentum of a matrix, made nearly orthogonal, is its update. All ranks that hold parts share out the work.

A matrix has to be whole to be made orthogonal, wherever ZeRO and tensor ranks hold its parts. The matrices of a stage
are dealt out in rounds, to each replica and tensor rank one. In a round, of two replicas (r) and two tensor ranks (t):

    held          r0 t0: a part of all four      r0 t1: a part of all four      r1 t0 ...
    all-to-all over replicas                     r0 gets two of the matrices, r1 the others; each tensor rank its part
    all-to-all over tensor ranks                 r0 t0 gets one of them whole, r0 t1 the other
    multiply      each rank makes one matrix orthogonal
    back          the same two ways

Under ZeRO-0 every replica has all, and only tensor ranks share out. Each expert is a matrix, which the replicas of the
experts share out. Queries, keys and values are one matrix, as are a gate and what it gates.

Source: arXiv 2502.16982, algorithm 1; Keller Jordan et al., Muon, 2024.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from conf.types.model_spec import ExpertsSpec
from conf.types.schema import TrainingPlan
from costs.axes import EXPERT
from costs.shared_rules import NEWTON_SCHULZ_STEPS, orthogonal_flops, rounds_of
from train_core.parallel.collectives import Axis, all_to_all, returning
from train_core.parallel.data_parallel import Replicas

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the polynomial a x + b x^3 + c x^5, which takes all singular values near 1 in few steps. Source: Jordan et al."""
RMS_OF_ADAM = 0.2
"""The root mean square of AdamW's updates, to which those of Muon are scaled. It is meant to let rates and decays that
are good for one serve the other. Source: arXiv 2502.16982, section 2.2."""
SMALLEST_NORM = 1e-7


class MuonState:
    """Holds the fp32 masters and the momentum for one flat part of the weights (n), which is of matrices alone."""

    def __init__(self, weights: Tensor) -> None:
        """Take the weights as masters, or copy them as such."""
        self.masters = weights.float()
        self.momentum = torch.zeros_like(self.masters)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint keeps of it, by name."""
        return {"weights": self.masters, "momentum": self.momentum}

    def write_to(self, weights: Tensor) -> None:
        if weights.dtype != self.masters.dtype:
            weights.copy_(self.masters)


class PlacedMatrix(NamedTuple):
    """A matrix in a part of the weights.

    Attributes:
        part: its index among those of the replicas.
        start: its first element in the part's bucket.
        rows, columns: those that this tensor rank has.
        split: the dim that the ranks of `tensor` share out.
        tensor: they, or this rank alone where each of them has the whole.
    """

    part: int
    start: int
    rows: int
    columns: int
    split: int
    tensor: Axis

    @property
    def length(self) -> int:
        return self.rows * self.columns

    @property
    def flops(self) -> int:
        """Those that make the whole matrix orthogonal."""
        times = self.tensor.size
        whole = (self.rows, self.columns * times) if self.split else (self.rows * times, self.columns)
        return orthogonal_flops(*whole)

    def joined(self, parts: Tensor) -> Tensor:
        """The whole matrix, from the parts of all tensor ranks behind one another."""
        parts = parts.view(self.tensor.size, self.rows, self.columns)
        return parts.transpose(0, 1).flatten(1) if self.split else parts.flatten(0, 1)

    def apart(self, whole: Tensor) -> Tensor:
        """The opposite: their parts behind one another (n)."""
        if self.split:
            whole = whole.unflatten(1, (self.tensor.size, self.columns)).transpose(0, 1)
        return whole.reshape(-1)


class MatrixPiece(NamedTuple):
    """The elements of a matrix that a replica holds, counted from the first one that it holds of the part."""

    part: int
    first: int
    length: int

    def of(self, own: Tensor) -> Tensor:
        return own.narrow(0, self.first, self.length)


class Round:
    """Matrices of which each rank makes one orthogonal; in the last round some ranks have none.

    Attributes:
        mine: the matrices that are dealt to the tensor ranks of this replica, in rank order.
        held: the pieces that this rank holds, in the order of the replicas that their matrices are dealt to.
        lengths: of the pieces of the matrices in `mine`, by the replica that holds them.
        to_replicas, to_tensor_ranks: the elements that each rank sends to each, as `all_to_all` takes them.
        from_replicas, from_tensor_ranks: the same on the way back.
    """

    def __init__(self, matrices: list[PlacedMatrix], replicas: Replicas) -> None:
        """The first matrices are dealt to the tensor ranks of the first replica."""
        self.tensor, self.over = matrices[0].tensor, replicas.shared_over(matrices[0].part)
        size, rank = self.tensor.size, self.over.rank
        dealt = [matrices[replica * size : (replica + 1) * size] for replica in range(self.over.size)]
        # By the replica that holds them, and by the one that their matrices are dealt to.
        pieces = [
            [[_piece(each, replicas.range_of(each.part, holder)) for each in of_replica] for of_replica in dealt]
            for holder in range(self.over.size)
        ]
        self.mine, self.held = dealt[rank], list(chain(*pieces[rank]))
        self.lengths = [[piece.length for piece in of_holder[rank]] for of_holder in pieces]
        self.to_replicas = [[sum(piece.length for piece in group) for group in of_holder] for of_holder in pieces]
        self.to_tensor_ranks = [[each.length for each in self.mine] + [0] * (size - len(self.mine))] * size
        self.from_replicas, self.from_tensor_ranks = map(returning, (self.to_replicas, self.to_tensor_ranks))

    def orthogonal(self, own: Callable[[MatrixPiece], Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
        """Of each piece in `held`, its elements of the matrix that is orthogonal, from those of all ranks.

        Args:
            own: its elements of the matrix as it is, in fp32.
        """
        # One name for all, so that each is gone as soon as the next is made of it.
        flat = torch.cat([own(piece) for piece in self.held])
        flat = all_to_all(flat, self.to_replicas, self.over).wait()
        flat = _by_columns(flat, self.lengths)
        flat = all_to_all(flat, self.to_tensor_ranks, self.tensor).wait()
        if self.tensor.rank < len(self.mine):
            matrix = self.mine[self.tensor.rank]
            flat = matrix.apart(orthogonal(matrix.joined(flat), dtype))
        flat = all_to_all(flat, self.from_tensor_ranks, self.tensor).wait()
        flat = _by_columns(flat, returning(self.lengths))
        flat = all_to_all(flat, self.from_replicas, self.over).wait()
        return flat.split([piece.length for piece in self.held])


def _piece(matrix: PlacedMatrix, held: range) -> MatrixPiece:
    first, stop = max(held.start, matrix.start), min(held.stop, matrix.start + matrix.length)
    return MatrixPiece(matrix.part, max(min(first, stop) - held.start, 0), max(stop - first, 0))


def _by_columns(flat: Tensor, lengths: list[list[int]]) -> Tensor:
    """Pieces of these lengths that stand row by row, column by column instead."""
    if len(lengths) <= 1 or len(lengths[0]) <= 1:
        return flat
    pieces = flat.split(list(chain(*lengths)))
    return torch.cat([piece for column in range(len(lengths[0])) for piece in pieces[column :: len(lengths[0])]])


class Muon:
    """Updates the matrices of all layers of a stage.

    Attributes:
        states: by the index of their part among those of the replicas.
    """

    def __init__(
        self, states: Mapping[int, MuonState], replicas: Replicas, dtype: torch.dtype, experts: ExpertsSpec | None
    ) -> None:
        """Deal the matrices out.

        Args:
            dtype: in which they are multiplied.
            experts: of the model.
        """
        self.states, self.dtype = states, dtype
        pools: dict[tuple[tuple[str, ...], int], list[PlacedMatrix]] = defaultdict(list)
        for index in states:
            for matrix in _matrices(replicas, index, experts):
                pools[replicas.treatments[index].reduced_over, matrix.tensor.size].append(matrix)
        self.rounds = [
            Round(matrices, replicas)
            for (_, num_tensor), pool in pools.items()
            for matrices in rounds_of(
                pool, lambda each: each.flops, replicas.shared_over(pool[0].part).size * num_tensor
            )
        ]

    def update(self, gradients: Sequence[Tensor], learning_rate: float, plan: TrainingPlan) -> None:
        """One step with the gradients of all parts of the replicas."""
        for index, state in self.states.items():
            state.momentum.mul_(plan.muon_momentum).add_(gradients[index])

        def ahead(piece: MatrixPiece) -> Tensor:  # Nesterov's
            momentum = piece.of(self.states[piece.part].momentum)
            return torch.add(piece.of(gradients[piece.part]), momentum, alpha=plan.muon_momentum)

        for each in self.rounds:
            for piece, update in zip(each.held, each.orthogonal(ahead, self.dtype), strict=True):
                masters = piece.of(self.states[piece.part].masters)
                masters.mul_(1 - learning_rate * plan.weight_decay).add_(update, alpha=-learning_rate)


def _matrices(replicas: Replicas, index: int, experts: ExpertsSpec | None) -> Iterator[PlacedMatrix]:
    """The matrices of a part, in order."""
    for name, shape, start in replicas.members(index):
        split, number, (rows, columns) = replicas.stage.placements[name].splits.get("tensor"), 1, shape
        if ".experts." in name and experts is not None:
            number = experts.num_experts // replicas.mesh.axis(EXPERT).size
        tensor = Axis() if split is None or replicas.mesh.tensor.size == 1 else replicas.mesh.tensor
        each = rows // number
        for expert in range(number):
            yield PlacedMatrix(index, start + expert * each * columns, each, columns, split or 0, tensor)


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
