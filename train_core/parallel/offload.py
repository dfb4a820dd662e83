"""What layers keep for backward waits in the host's memory until backward comes to them.

    forward     layer 0, its tensors go out | layer 1, its tensors go out | ...
    backward    ... | those of layer 1 come back, layer 1 | those of layer 0 come back, layer 0

So the device holds what one layer keeps while that runs, forward or backward. Parameters and buffers stay where they
are, and so do tables that layers share, single values, and the input of a chunk's first layer, which a pipeline holds
for its gradient. Storages travel and not tensors, of which several are views of one. They are copied on the stream that
computes, so that nothing hides it; a GPU's host holds them in pinned memory, of which torch takes powers of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

Key: TypeAlias = tuple[int, torch.dtype]


class HostMemory:
    """The host's memory; on a CPU, where this saves nothing, a copy beside the original."""

    def take(self, flat: Tensor) -> Any:
        there = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=flat.is_cuda)
        return there.copy_(flat, non_blocking=True)

    def give_back(self, there: Any, device: torch.device) -> Tensor:
        back: Tensor = there.to(device, non_blocking=True, copy=True)
        return back


HOST = HostMemory()


class Part(NamedTuple):
    """A tensor that is kept: where it lies in its storage."""

    key: Key
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class KeptByPass:
    """What one forward pass of a layer keeps.

    Attributes:
        here: whole storages that are on the device, while the layer runs forward or backward.
        there: all of them, wherever `host` put them.
        num_parts: how many parts of each storage backward has yet to ask for.
    """

    def __init__(self, host: HostMemory, device: torch.device, staying: set[int]) -> None:
        """`staying` are the addresses of storages that are not sent."""
        self.host, self.device, self.staying = host, device, staying
        self.here, self.there = dict[Key, Tensor](), dict[Key, Any]()
        self.num_parts, self.is_back = Counter[Key](), False

    def pack(self, tensor: Tensor) -> Part | Tensor:
        storage = tensor.untyped_storage()
        if tensor.numel() <= 1 or storage._cdata in self.staying:
            return tensor.detach()  # with its graph it would be kept by itself
        key = storage._cdata, tensor.dtype
        if key not in self.here:
            self.here[key] = tensor.detach().as_strided((storage.nbytes() // tensor.itemsize,), (1,), 0)
        self.num_parts[key] += 1
        return Part(key, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def send(self) -> None:
        """All of it to the host, once the layer has run."""
        self.there = {key: self.host.take(flat) for key, flat in self.here.items()}
        self.here.clear()

    def unpack(self, kept: Part | Tensor) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        key = kept.key
        if key not in self.here:
            # All come with the first; what is asked for more often than it was kept comes once more.
            for each in [key] if self.is_back else self.there:
                self.here[each] = self.host.give_back(self.there[each], self.device)
            self.is_back = True
        tensor = self.here[key].as_strided(kept.size, kept.stride, kept.offset)
        self.num_parts[key] -= 1
        if self.num_parts[key] <= 0:
            del self.here[key]
        return tensor


def offload(layer: nn.Module, host: HostMemory, *, keeps_input: bool) -> None:
    """Have the layer's forward passes send what they keep, but for their input where it stays."""
    # A module around the layer would change the names of its parameters.
    layer.forward = partial(_run, layer, layer.forward, host, keeps_input)


def _run(
    layer: nn.Module, forward: Callable[..., Tensor], host: HostMemory, keeps_input: bool, x: Tensor, *shared: Any
) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(x, *shared)
    # Asked for in every pass, as ZeRO-3 puts gathered parameters in the place of shards.
    staying = chain(layer.parameters(), layer.buffers(), shared, [x] if keeps_input else [])
    addresses = {tensor.untyped_storage()._cdata for tensor in staying if isinstance(tensor, Tensor)}
    kept = KeptByPass(host, x.device, addresses)
    with saved_tensors_hooks(kept.pack, kept.unpack):
        out = forward(x, *shared)
    kept.send()
    return out
