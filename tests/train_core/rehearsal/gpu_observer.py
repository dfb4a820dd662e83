"""What the host asks of a GPU in a step: operations without a kernel there, waits, and copies from the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train_core.rehearsal import gpu_stand_ins
from tests.train_core.rehearsal.gpu_stand_ins import DEVICE, told
from train_core.parallel.clock import Clock
from train_core.rehearsal.observer import tensors_of

aten = torch.ops.aten
READS = (aten._local_scalar_dense.default,)
COPIES = (aten._to_copy.default, aten.copy_.default)
OF_TOKENS = (aten.lift_fresh.default, aten.is_pinned.default, aten._pin_memory.default)
"""What is done to token ids on the host before they are copied."""
GENERAL = {"CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd"}
NO_OPERATION = ("profiler",)


class Wait(NamedTuple):
    """The host waits for the device.

    Attributes:
        micro_batch: the one that is worked on; None outside the passes.
    """

    why: str
    micro_batch: int | None


class GpuObserver(TorchDispatchMode):
    """Sees every operation of this thread while it is entered as a context.

    Attributes:
        operations: those on tensors of the GPU, by their full names.
        waits: in the order in which they came.
        on_host: operations inside passes on tensors of the host, but for those that prepare and copy token ids.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.clock = clock
        self.operations: set[OpOverload] = set()
        self.waits: list[Wait] = []
        self.on_host: list[str] = []
        self._pinned: list[Tensor] = []
        self._read: list[torch.UntypedStorage] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block, waits for events, streams and the device are seen too."""
        with pytest.MonkeyPatch.context() as patch, self:
            patch.setattr(gpu_stand_ins, "on_wait", self._wait)
            yield

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is DEVICE:
            return told(args[0])
        if function in READS:
            self._reads(args[0])
            return 1.0
        if function is aten._pin_memory.default:
            self._pinned.append(torch.empty_like(args[0]))
            return self._pinned[-1]
        if kwargs.pop("pin_memory", False):
            self._pinned.append(function(*args, **kwargs))
            return self._pinned[-1]
        # C++ takes a tensor of the GPU for one of `meta`, out of which it cannot copy.
        is_moved = function is aten.copy_.default and args[0].device != args[1].device
        out = args[0] if is_moved else function(*args, **kwargs)
        self._look(function, [args, list(kwargs.values())], out)
        return out

    def _look(self, function: OpOverload, given: Any, out: Any) -> None:
        inputs, outputs = list(tensors_of(given)), list(tensors_of(out))
        devices = {tensor.device.type for tensor in (*inputs, *outputs)}
        if "cuda" in devices:
            self.operations.add(function)
        if function in COPIES and len(devices) > 1:
            self._copied(inputs, outputs[0], is_blocking=not _asks_for_no_wait(function, given))
        elif "cpu" in devices and self.clock.micro_batch is not None and function not in OF_TOKENS:
            self.on_host.append(str(function))

    def _copied(self, inputs: list[Tensor], into: Tensor, *, is_blocking: bool) -> None:
        if into.device.type == "cpu":
            if is_blocking or not self._is_pinned(into):
                self._wait("a copy to the host")
        elif is_blocking or not self._is_pinned(inputs[-1]):
            self._wait("a copy from pageable memory")

    def _is_pinned(self, tensor: Tensor) -> bool:
        return any(tensor.untyped_storage()._cdata == pinned.untyped_storage()._cdata for pinned in self._pinned)

    def _reads(self, value: Tensor) -> None:
        """Numbers that are read one by one from the same memory, as in `tolist`, come in one copy."""
        storage = value.untyped_storage()
        if value.device.type == "cuda" and not any(storage._cdata == other._cdata for other in self._read):
            self._read.append(storage)
            self._wait("a value that is read")

    def _wait(self, why: str) -> None:
        self.waits.append(Wait(why, self.clock.micro_batch))


def _asks_for_no_wait(function: OpOverload, given: Any) -> bool:
    arguments, options = given
    return True in options or (function is aten.copy_.default and True in arguments[2:])


def without_kernel(operation: OpOverload) -> bool:
    """Whether a GPU lacks the operation, by torch's own list of what its kernels are written for.

    A torch that was built without CUDA knows the list, but has registered none of the kernels.
    """
    if operation.namespace in NO_OPERATION:
        return False
    if operation.namespace == "aten":
        return not _has_kernel(operation._schema.name.removeprefix("aten::"), operation._overloadname)
    name = f"{operation._schema.name}.{operation._overloadname}".removesuffix(".default")
    return not any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CUDA", "CompositeImplicitAutograd")
    )


def _has_kernel(name: str, overload: str) -> bool:
    functions = native_functions()
    entry = functions[name if overload == "default" else f"{name}.{overload}"]
    if "structured_delegate" in entry:
        entry = functions[entry["structured_delegate"]]
    # An operation without kernels of its own is made of others; one with an inner loop gets its kernels from that.
    if "dispatch" not in entry or "ufunc_inner_loop" in entry:
        return True
    kinds = {kind.strip() for kinds in entry["dispatch"] for kind in kinds.split(",")}
    return "CUDA" in kinds or bool(kinds & GENERAL)


@cache
def native_functions() -> dict[str, dict[str, Any]]:
    """torch's operations by name and overload, and what each has a kernel for."""
    listed = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
    entries: list[dict[str, Any]] = yaml.load(listed.read_text(), yaml.CSafeLoader)
    functions = {str(entry["func"]).partition("(")[0]: entry for entry in entries}
    for entry in entries:  # torch derives further overloads from these, made of the operation itself
        for derived in str(entry.get("autogen", "")).split(","):
            functions.setdefault(derived.strip(), {})
    return functions
