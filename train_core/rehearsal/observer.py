"""The effects of one rank's step on a device, operation by operation: memory, matrix products, collectives."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from costs.counts.traffic import Kind
from train_core.parallel.clock import Clock

Amounts = Counter[tuple[str, Kind]]
"""FLOPs of matrix products, attention over the full square; numbers and bytes of collectives by kind.

Bytes are those of the whole tensor that is summed, gathered, scattered or sent.
"""
FLOPS = ("flops", Kind("", ""))
COLLECTIVES = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "send": "send",
    "recv_": "receive",
}
"""torch's names of the operations, and the trainer's."""
NO_BACKWARD = -1  # what autograd answers where it is asked outside backward which pass runs
FILLING = ("_allgather_base_", "_reduce_scatter_base_", "alltoall_base_", "recv_")
"""The operations that write into a buffer, which is their first argument."""


def _attention_flops(num_products: int, query: int, is_causal: int) -> Callable[..., int]:
    """The counter for a fused kernel that makes so many products of the full square of scores.

    Args:
        query, is_causal: the places of these among its arguments; keys follow queries.

    Queries are (b, heads, n, head_size), keys (b, groups, m, head_size); values may be narrower. Half of the products
    are of queries with keys, or their gradients, and half of values. A block of context ranks without a mask
    stands for another one of the square, too, that the mask leaves out whole.
    """

    def flops(*arguments: Any, **_: Any) -> int:
        b, heads, n, head_size = (int(size) for size in arguments[query].shape)
        num_squares = 1 if any(arguments[is_causal:]) else 2  # torch leaves out a last argument that is the default
        key, value = arguments[query + 1 : query + 3]
        width = head_size + int(value.size(-1))
        return num_squares * num_products * b * heads * n * int(key.size(2)) * width

    return flops


def _added_product_flops(_: Tensor, left: Tensor, right: Tensor, *types: Any, **more: Any) -> int:
    """The FLOPs of left (m, k) times right (k, n), added to a tensor."""
    (m, k), n = left.shape, right.shape[1]
    return int(2 * m * k * n)


aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default
"""autograd asks every fake tensor for its device, more often than it calls all operations together. It gets the answer
that fake tensors give, without the way through their dispatch."""
FLOPS_OF: dict[Any, Callable[..., int]] = {
    **flop_registry,
    aten.addmm: _added_product_flops,  # torch's own takes no output of another type
    aten.addmm_: _added_product_flops,  # gradients in the type of their factors, as in fp32
    # Under fake tensors attention is the CPU's flash kernel, which torch's own counter does not know.
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops(2, query=0, is_causal=4),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_flops(4, query=1, is_causal=7),
}


@dataclass(slots=True)
class Allocation:
    """One piece of memory; times are indices of events. A storage that is emptied and filled again counts as several.

    Attributes:
        address: where its storage is; another storage may have the address once this one is freed.
        in_backward: allocated by a backward pass, a repeated forward included.
        is_passing: its storage is emptied and filled in turns.
        is_filled: a collective or transfer writes into it.
        taken: when a computation outside backward passes first read what was filled in; None where none did.
        freed: None while it lives.
    """

    address: int
    num_bytes: int
    shape: tuple[int, ...]
    born: int
    in_backward: bool
    is_passing: bool = False
    is_filled: bool = False
    taken: int | None = None
    freed: int | None = None


class StepObserver(TorchDispatchMode):
    """Records every operation of this thread while it is entered as a context.

    Attributes:
        allocations: every piece of memory that was ever allocated, in that order.
        events: bytes that each allocation adds and each release takes away.
        backward_events: indices of the allocations of backward passes.
        amounts_of: FLOPs and collectives by the micro-batch that is worked on; None outside the pipeline.
    """

    def __init__(self, clock: Clock) -> None:
        """The executor tells `clock` which micro-batch is worked on."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = clock
        self.allocations: list[Allocation] = []
        self.events: list[int] = []
        self.backward_events: list[int] = []
        self.amounts_of: defaultdict[int | None, Amounts] = defaultdict(Counter)
        self._live: dict[int, Allocation] = {}
        self._filled: dict[int, Allocation] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is DEVICE:
            return args[0].fake_device
        kwargs = kwargs or {}
        if function is aten._local_scalar_dense.default:
            return 1.0  # a step reads values back, such as the gradient's norm, which fake tensors do not have
        out = function(*args, **kwargs)
        if function.namespace == "c10d":
            self._count_collective(function._opname, args)
            return out
        count = FLOPS_OF.get(function.overloadpacket)
        if count is not None:
            self.amounts_of[self.clock.micro_batch][FLOPS] += count(*args, **kwargs, out_val=out)
        in_backward = _is_in_backward()
        made = list(tensors_of(out))
        # A forward pass that computes something from what others have filled in has taken it.
        if made and self._filled and not in_backward:
            self._take(args)
        for tensor in made:
            self._allocate(tensor, in_backward)
        return out

    @contextmanager
    def observe_resizes(self) -> Iterator[None]:
        """Inside the block, storages that are emptied and refilled are counted too.

        ZeRO-2 does so with gradients, and FSDP2 with the weights that it has gathered. It is no operation that torch
        dispatches, and torch tells nobody of it, so that its method has to be replaced to be watched.
        """
        resize = torch.UntypedStorage.resize_

        def observe_resize(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            resized = resize(storage, num_bytes)
            if storage._cdata in self._live:
                self._live[storage._cdata].is_passing = True
            self._free(storage._cdata)
            if num_bytes:
                self._hold(storage, (), _is_in_backward()).is_passing = True
            return resized

        torch.UntypedStorage.resize_ = observe_resize  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def _count_collective(self, name: str, args: Any) -> None:
        kind = COLLECTIVES.get(name, name)
        key = Kind(_group_of(args), kind)
        amounts = self.amounts_of[self.clock.micro_batch]
        amounts["number", key] += 1
        # The whole tensor is the largest argument: a gather's output, a scatter's input.
        amounts["bytes", key] += max(tensor.nbytes for tensor in tensors_of(args))
        if name in FILLING:
            for tensor in tensors_of(args[0]):
                self._fill(tensor)

    def _fill(self, tensor: Tensor) -> None:
        allocation = self._live.get(tensor.untyped_storage()._cdata)
        if allocation is not None and not allocation.is_filled:
            allocation.is_filled = True
            self._filled[tensor.untyped_storage()._cdata] = allocation

    def _take(self, args: Any) -> None:
        for tensor in tensors_of(args):
            allocation = self._filled.pop(tensor.untyped_storage()._cdata, None)
            if allocation is not None:
                allocation.taken = len(self.events)

    def _allocate(self, tensor: Tensor, in_backward: bool) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._live:
            self._hold(storage, tuple(tensor.shape), in_backward)
            # Nothing tells of the end of a storage but its own garbage collection.
            weakref.finalize(storage, self._free, storage._cdata)

    def _hold(self, storage: torch.UntypedStorage, shape: tuple[int, ...], in_backward: bool) -> Allocation:
        allocation = Allocation(storage._cdata, storage.nbytes(), shape, len(self.events), in_backward)
        self.allocations.append(allocation)
        self._live[allocation.address] = allocation
        if in_backward:
            self.backward_events.append(allocation.born)
        self.events.append(allocation.num_bytes)
        return allocation

    def _free(self, address: int) -> None:
        allocation = self._live.pop(address, None)
        if allocation is None:
            return  # emptied before
        self._filled.pop(address, None)
        # The time is the event that follows, which is the release itself.
        allocation.freed = len(self.events)
        self.events.append(-allocation.num_bytes)


def _group_of(args: Any) -> str:
    """The axis of a collective: the name that `mesh` gave the group among its arguments, or `world`."""
    # Below Python, torch's operators take a group as a boxed object, at a place that differs between operations.
    group = next(dist.ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch._C.ScriptObject))
    return "world" if group.group_desc == "default_pg" else str(group.group_desc)


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != NO_BACKWARD


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """Tensors in the arguments or results of an operation, without those that only wrap others, as ZeRO-3's do."""
    if isinstance(tree, Tensor):
        if not hasattr(type(tree), "__tensor_flatten__"):
            yield tree
    elif isinstance(tree, list | tuple):
        for leaf in tree:
            yield from tensors_of(leaf)
