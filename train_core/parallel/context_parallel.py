"""Context parallelism: the ranks of an axis share out the tokens of every sequence, in all layers.

Each rank has two pieces, one from the front and one from the end, so that the causal mask leaves all as much work:

    four pieces, two ranks      | 0 | 1 | 2 | 3 |      rank 0 has 0 and 3, rank 1 has 1 and 2

Attention alone looks beyond a rank's own tokens. The keys and values of all ranks come by, and each rank's are a block
of scores, of which a kernel computes nothing but what the mask leaves:

    of this rank itself     causal, since both have their pieces in order
    of a rank before it     all queries see its first piece, and none its second
    of a rank after it      the queries of the second piece see both, the others nothing

Outputs of blocks are merged by their log-sum-exp, in fp32. Backward, a block's gradients follow from the merged ones,
and those of keys and values are summed on the rank that they are of. Of separate documents each has blocks of its own,
between the ranks that have tokens of it. Shapes: c context-parallel size, n = s / c.
Source: arXiv 2310.01889 and 2407.21783, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from conf.types.schema import ContextExchange
from train_core.model.attention import CausalAttention
from train_core.model.attention_blocks import (
    Attended,
    BlockMask,
    add_sinks,
    block_gradients,
    block_output,
    near_mask,
    sinks_gradient,
    unseen_of,
)
from train_core.model.documents import Documents, spans_of
from train_core.model.elementwise import UntransformedFunction
from train_core.parallel.collectives import Axis, Pending, all_gather, reduce_scatter

NUM_PIECES = 2


def own_tokens(whole: Tensor, axis: Axis, dim: int = 0) -> Tensor:
    """This rank's two pieces of what has one entry for each token of a sequence."""
    if axis.size == 1:
        return whole
    # Piece r and the r-th from the end: early tokens see few keys and late ones many, so that every rank has as many
    # scores to compute.
    pieces = whole.chunk(NUM_PIECES * axis.size, dim)
    return torch.cat((pieces[axis.rank], pieces[-1 - axis.rank]), dim)


def own_documents(whole: Documents, axis: Axis) -> Documents:
    """The positions of this rank's tokens, and where documents lie among the tokens of each rank."""
    if axis.size == 1:
        return whole
    pieces = np.split(whole.numbers, NUM_PIECES * axis.size)
    spans = tuple(spans_of(np.concatenate((pieces[rank], pieces[-1 - rank]))) for rank in range(axis.size))
    return replace(whole, positions=own_tokens(whole.positions, axis), spans=spans)


def places_of(rank: int, axis: Axis, num_tokens: int, device: torch.device | None = None) -> Tensor:
    """The places in a sequence of the tokens (n) of one of an axis's ranks, in order."""
    return own_tokens(torch.arange(num_tokens * axis.size, device=device), replace(axis, rank=rank))


def in_order(gathered: Tensor, axis: Axis) -> Tensor:
    """What all ranks' pieces, gathered along dim 0, are of a whole sequence: the reverse of `own_tokens`."""
    if axis.size == 1:
        return gathered
    pieces = gathered.chunk(NUM_PIECES * axis.size)
    return torch.cat((*pieces[::NUM_PIECES], *reversed(pieces[1::NUM_PIECES])))


def pass_on(tensor: Tensor, axis: Axis) -> Pending:
    """Start sending `tensor` to the next rank, from the last to the first, and receiving what the rank before sends."""
    assert axis.group is not None
    ranks, into = dist.get_process_group_ranks(axis.group), torch.empty_like(tensor)
    sending = dist.P2POp(dist.isend, tensor, ranks[(axis.rank + 1) % axis.size], axis.group)
    receiving = dist.P2POp(dist.irecv, into, ranks[axis.rank - 1], axis.group)
    # Together: NCCL runs the operations of a group one after the other, and all ranks would wait for their sends.
    return Pending(into, Both(dist.batch_isend_irecv([sending, receiving])), "pass_on", axis.line)


class Both(NamedTuple):
    """Operations that were started together; one, where torch makes one of them."""

    works: list[dist.Work]

    def wait(self) -> bool:
        for work in self.works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)


class Visit(NamedTuple):
    """The keys and values of a rank that come by, one behind the other, and the sum of their gradient so far."""

    owner: int
    pairs: Tensor
    gradient: Pending


class Gather:
    """All keys and values come at once, beside this rank's own block; their gradients go back at once."""

    def visits(self, own: Tensor, axis: Axis) -> Iterator[tuple[int, Tensor]]:
        """Every rank of the axis and its keys and values, this rank first."""
        # Started before the own block is handed out, whose work hides it.
        gathering = all_gather(own[None], axis)
        yield axis.rank, own
        whole = gathering.wait()
        yield from ((owner, whole[owner]) for owner in range(axis.size) if owner != axis.rank)

    def visits_for_gradients(self, own: Tensor, axis: Axis) -> Iterator[Visit]:
        """The same again. The gradient of the first visit, which is this rank's own, is complete after the last."""
        # One place for each owner in rank order, for a reduce-scatter hands the i-th rank the sum of the i-th places.
        gradients = own.new_zeros(axis.size, *own.shape)
        for owner, pairs in self.visits(own, axis):
            yield Visit(owner, pairs, Pending(gradients[owner]))
        # Written into the place that the first visit handed out, where the caller looks once the visits are over.
        gradients[axis.rank] = reduce_scatter(gradients, axis).wait()[0]


class Ring:
    """Keys and values go from rank to rank, and each hop is beside a block; their gradients follow one block behind."""

    def visits(self, own: Tensor, axis: Axis) -> Iterator[tuple[int, Tensor]]:
        pairs = own
        for step in range(axis.size):
            is_last = step == axis.size - 1
            # The next pairs travel while the caller works on these. After the last block every rank has seen all.
            coming = Pending(pairs) if is_last else pass_on(pairs, axis)
            # Each hop comes from the rank before, so that after so many hops the pairs are those of a rank so far
            # before.
            yield (axis.rank - step) % axis.size, pairs
            pairs = coming.wait()

    def visits_for_gradients(self, own: Tensor, axis: Axis) -> Iterator[Visit]:
        home, going = Pending(torch.zeros_like(own)), Pending(torch.zeros_like(own))
        for owner, pairs in self.visits(own, axis):
            is_own = owner == axis.rank
            yield Visit(owner, pairs, home if is_own else going)
            if not is_own:  # to the rank that these keys and values come to next, and in the end to their own
                going = pass_on(going.tensor, axis)
        # A hop after the last block brings the sum to the owner of its keys, which adds it to what it computed itself.
        home.tensor.add_(going.wait())


EXCHANGES: dict[ContextExchange, Gather | Ring] = {"gather": Gather(), "ring": Ring()}


class Block(NamedTuple):
    """The queries of this rank and the keys of another that see each other, along their tokens, in these sequences."""

    queries: slice
    keys: slice
    is_causal: bool
    sequences: slice = slice(None)

    @classmethod
    def of(cls, owner: int, rank: int, num_tokens: int) -> Block:
        first, last, both = slice(num_tokens // NUM_PIECES), slice(num_tokens // NUM_PIECES, None), slice(None)
        # Rank r has pieces r and 2c - 1 - r. Those of two ranks never coincide, so that the mask's diagonal runs
        # through own blocks alone, and every other block is seen whole or not at all.
        if owner == rank:
            return cls(both, both, is_causal=True)
        return cls(both, first, is_causal=False) if owner < rank else cls(last, both, is_causal=False)

    @classmethod
    def all_of(cls, owner: int, rank: int, num_tokens: int, documents: Documents | None) -> Iterator[Block]:
        """The block, or its part of every document that has tokens on both sides.

        A document's tokens are in order on every rank, so that what is causal stays so, and all else is seen whole.
        """
        whole = cls.of(owner, rank, num_tokens)
        if documents is None:
            yield whole
            return
        for index, (own, others) in enumerate(zip(documents.spans[rank], documents.spans[owner], strict=True)):
            for number, span in own.items():
                queries = _overlap(span, whole.queries, num_tokens)
                keys = _overlap(others.get(number, slice(0)), whole.keys, num_tokens)
                if queries.start < queries.stop and keys.start < keys.stop:
                    yield cls(queries, keys, whole.is_causal, slice(index, index + 1))


class Reach(NamedTuple):
    """The blocks of queries and keys that see each other, and what within them does not.

    Attributes:
        window, cap: as those of `causal_attention`.
    """

    axis: Axis
    documents: Documents | None
    window: int | None
    cap: float | None = None

    def blocks(self, owner: int, query: Tensor) -> Iterator[tuple[Block, BlockMask]]:
        """Those with the keys of a rank, but for what no window reaches."""
        num_tokens, rank = query.size(2), self.axis.rank
        for block in Block.all_of(owner, rank, num_tokens, self.documents):
            # Without values, as in a rehearsal, a mask would take memory.
            if self.window is None or isinstance(query, FakeTensor):
                yield block, BlockMask(block.is_causal, cap=self.cap)
                continue
            # On the host, which must not wait for the device.
            first, last = (places_of(each, self.axis, num_tokens) for each in (rank, owner))
            if int(first[block.queries][0] - last[block.keys][-1]) < self.window:
                own, others = (places_of(each, self.axis, num_tokens, query.device) for each in (rank, owner))
                is_near = near_mask(own[block.queries], others[block.keys], self.window)
                yield block, BlockMask(unseen=unseen_of(is_near, query), cap=self.cap)


def _overlap(span: slice, other: slice, num_tokens: int) -> slice:
    start, stop, _ = other.indices(num_tokens)
    return slice(max(span.start or 0, start), min(span.stop, stop))


class _Pairs(NamedTuple):
    """Keys (b, groups, n, d) and values (b, groups, n, v), which travel in one piece."""

    key: Tensor
    value: Tensor

    def together(self) -> Tensor:
        """All elements of the keys, and behind them those of the values."""
        piece = self.key.new_empty(self.key.numel() + self.value.numel())
        for place, heads in zip(self.apart(piece), self, strict=True):
            place.copy_(heads)
        return piece

    def apart(self, piece: Tensor) -> _Pairs:
        """Another rank's keys and values, or the sums of their gradients, as views of such a piece."""
        key, value = piece.split_with_sizes([self.key.numel(), self.value.numel()])
        return _Pairs(key.view(self.key.shape), value.view(self.value.shape))


class _BlockwiseAttention(UntransformedFunction):
    """Attention of this rank's queries to the keys and values of all ranks; keeps what one kernel over all would."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        exchange: Gather | Ring,
        reach: Reach,
    ) -> Tensor:
        own, axis, documents = _Pairs(key, value), reach.axis, reach.documents
        out, log_sum_exp = query, query  # set by the first visit, which is to all queries
        if documents is not None:  # document by document
            out = torch.empty_like(query[..., : value.size(-1)], dtype=torch.float32)
            log_sum_exp = query.new_empty(query.shape[:-1], dtype=torch.float32)
        for owner, piece in exchange.visits(own.together(), axis):
            pairs = own.apart(piece)
            for (queries, keys, _, rows), seen in reach.blocks(owner, query):
                of_block, its_log_sum_exp = block_output(
                    query[rows, :, queries], pairs.key[rows, :, keys], pairs.value[rows, :, keys], seen
                )
                if owner != axis.rank:
                    _merge(out[rows, :, queries], log_sum_exp[rows, :, queries], of_block, its_log_sum_exp)
                elif documents is None:
                    out, log_sum_exp = of_block.float(), its_log_sum_exp
                else:
                    out[rows, :, queries], log_sum_exp[rows, :, queries] = of_block, its_log_sum_exp
                # Else it would still be there while the next block is computed.
                del of_block, its_log_sum_exp
        if sinks is not None:
            out, log_sum_exp = add_sinks(out, log_sum_exp, sinks)
        out = out.to(query.dtype)
        ctx.exchange, ctx.reach = exchange, reach
        # Keys and values of other ranks are not kept, whose memory is what the axis is for: they come by again in
        # backward.
        ctx.save_for_backward(query, key, value, out, log_sum_exp, sinks)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, log_sum_exp, sinks = ctx.saved_tensors
        # In fp32, as it stays on this rank. The sums for keys and values travel, and have the activations' type.
        grad_query, complete = torch.zeros_like(query, dtype=torch.float32), None
        own = _Pairs(key, value)
        for owner, piece, gradient in ctx.exchange.visits_for_gradients(own.together(), ctx.reach.axis):
            # The first visit is this rank's own, and its sum is complete only after the last visit.
            complete, sums, pairs = gradient.tensor if complete is None else complete, None, own.apart(piece)
            for (queries, keys, _, rows), seen in ctx.reach.blocks(owner, query):
                own_side = (tensor[rows, :, queries] for tensor in (grad_out, query, out, log_sum_exp))
                others = (heads[rows, :, keys] for heads in pairs)
                of_query, of_key, of_value = block_gradients(Attended(*own_side, *others), seen)
                grad_query[rows, :, queries] += of_query
                sums = own.apart(gradient.wait()) if sums is None else sums
                sums.key[rows, :, keys] += of_key
                sums.value[rows, :, keys] += of_value
                # Else they would still be there beside those of the next block.
                del of_query, of_key, of_value
            # No document has tokens on both sides, or no window reaches so far: the sum goes on as it came.
            if sums is None:
                gradient.wait()
        assert complete is not None
        of_sinks = None if sinks is None else sinks_gradient(grad_out, out, log_sum_exp, sinks)
        return grad_query.to(query.dtype), *own.apart(complete), of_sinks, None, None


def _merge(out: Tensor, log_sum_exp: Tensor, of_block: Tensor, its_log_sum_exp: Tensor) -> None:
    """Add a block to what queries have attended to so far, in place."""
    # sigmoid(b - a) is exp(b) / (exp(a) + exp(b)), and overflows for no a and b.
    share = (its_log_sum_exp - log_sum_exp).sigmoid()  # of all exponentials so far, those of the block
    out.lerp_(of_block.float(), share[..., None])
    torch.logaddexp(log_sum_exp, its_log_sum_exp, out=log_sum_exp)


class ContextAttention(CausalAttention):
    """The queries, keys and values are those of this rank's tokens."""

    def __init__(self, axis: Axis, exchange: ContextExchange, whole: CausalAttention) -> None:
        super().__init__(whole.window, whole.cap)
        self.axis, self.exchange = axis, EXCHANGES[exchange]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, documents: Documents | None, sinks: Tensor | None
    ) -> Tensor:
        # Without values, as in a rehearsal, scores are those of a kernel.
        cap = None if isinstance(query, FakeTensor) else self.cap
        reach = Reach(self.axis, documents, self.window, cap)
        out: Tensor = _BlockwiseAttention.apply(query, key, value, sinks, self.exchange, reach)
        return out
