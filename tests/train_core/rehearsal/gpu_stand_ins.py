"""What a rehearsal on fake CUDA tensors needs where there is no driver: as little as possible, and nothing computes.

Fake tensors live on a device that torch was not built for, but four things look for the driver. Here is what stands in
for each while `no_driver` is entered:

    events and streams       objects that do nothing, but for `synchronize`, which is told to whoever asks
    generators               those of the CPU; a fake tensor draws nothing
    autograd's streams       autograd takes the stream of every tensor's device; C++ is told that the device is `meta`,
                             and Python, which is where the trainer decides, that it is a GPU
    choosing attention       torch asks the device which kernels it has; here `attention_of` a generation answers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn import functional

GPU, META = torch.device("cuda", 0), torch.device("meta")
DEVICE = torch.ops.prim.device.default
LARGEST_FLASH_HEAD = 256
HALVES = (torch.float16, torch.bfloat16)
aten = torch.ops.aten


class StandInEvent:
    """An event that the stream has always come through."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def record(self, *_: object) -> None: ...

    def wait(self, *_: object) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: StandInEvent) -> float:
        return 0.0

    def synchronize(self) -> None:
        on_wait("an event")


class StandInStream:
    """A stream on which nothing is queued."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, *_: object) -> None: ...

    def wait_event(self, *_: object) -> None: ...

    def record_event(self, *_: object) -> StandInEvent:
        return StandInEvent()

    def synchronize(self) -> None:
        on_wait("a stream")

    def __enter__(self) -> StandInStream:
        return self

    def __exit__(self, *_: object) -> None: ...


STREAM = StandInStream()


def on_wait(what: str) -> None:
    """The host waits for `what`; replaced by whoever wants to know."""


class StandInGenerator(torch.Generator):
    """A CPU's generator, whatever device is asked for."""

    def __new__(cls, device: object = None) -> StandInGenerator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]


@contextmanager
def no_driver(capability: tuple[int, int]) -> Iterator[None]:
    """Inside the block, fake tensors on `GPU` can be computed with and differentiated, in this thread.

    Args:
        capability: of the GPU, as torch tells it: (8, 0) for an A100.
    """
    with pytest.MonkeyPatch.context() as patch, torch.autograd.set_multithreading_enabled(False):
        patch.setattr(torch.cuda, "Event", StandInEvent)
        patch.setattr(torch.cuda, "Stream", StandInStream)
        patch.setattr(torch.cuda, "stream", lambda stream: stream)
        patch.setattr(torch.cuda, "current_stream", lambda _=None: STREAM)
        patch.setattr(torch.cuda, "synchronize", lambda _=None: on_wait("the device"))
        patch.setattr(torch.cuda, "current_device", lambda: GPU.index)
        patch.setattr(torch.cuda, "get_device_capability", lambda _=None: capability)
        patch.setattr(torch.cuda, "default_generators", (StandInGenerator(),), raising=False)
        patch.setattr(torch, "Generator", StandInGenerator)
        patch.setattr(functional, "scaled_dot_product_attention", attention_of(capability))
        _tell_autograd_of_meta(patch)
        yield


def _tell_autograd_of_meta(patch: pytest.MonkeyPatch) -> None:
    """C++ asks fake tensors for their device by an operation; Python reads an attribute, which stays true."""
    dispatch: Callable[..., object] = FakeTensor.__torch_dispatch__.__func__  # type: ignore[attr-defined]

    def told_of(arguments: Any) -> torch.device:
        return told(arguments[0])

    def answered(cls: type, function: object, types: Any, args: Any = (), kwargs: Any = None) -> object:
        return told_of(args) if function is DEVICE else dispatch(cls, function, types, args, kwargs or {})

    patch.setattr(FakeTensor, "__torch_dispatch__", classmethod(answered))
    patch.setitem(fake_tensor._DISPATCH_META_HANDLERS, DEVICE, told_of)
    # What C++ works out from the device that it was told has to be put right for Python.
    patch.setattr(FakeTensor, "is_cuda", property(lambda tensor: tensor.fake_device.type == "cuda"))
    patch.setattr(FakeTensor, "is_meta", property(lambda tensor: tensor.fake_device.type == "meta"))
    for name in ("device", "is_cuda", "is_meta"):
        patch.setattr(DTensor, name, property(attrgetter(f"_local_tensor.{name}")))


def told(tensor: FakeTensor) -> torch.device:
    return META if tensor.fake_device.type == "cuda" else tensor.fake_device


class FakeGpuMode(FakeTensorMode):
    """Makes fake tensors on a GPU, also where C++ wants one beside another, whose device it was told to be `meta`."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == META and self.steps:
            kwargs = {**kwargs, "device": GPU}
        return super().dispatch(func, types, args, kwargs)

    steps = False
    """Whether a model has been built, after which nothing is made on the meta device on purpose."""


def attention_of(capability: tuple[int, int]) -> Callable[..., Tensor]:
    """`scaled_dot_product_attention` as torch computes it on an NVIDIA GPU of this generation.

    The memory-efficient kernel takes no groups here, because it does so in recent releases of torch alone. Where
    neither kernel can be used torch stores all scores, which is an error here.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch, `can_use_flash_attention` and
    `can_use_mem_efficient_attention`.
    """

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        dropout_p: float,
        is_causal: bool,
        enable_gqa: bool,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        out: Tensor
        half, head_size = query.dtype in HALVES, query.size(-1)
        if attn_mask is None and half and capability >= (8, 0) and head_size <= LARGEST_FLASH_HEAD:
            out, *_ = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal)
            return out
        assert query.dtype != torch.bfloat16 or capability >= (8, 0), "there is no fused kernel for bf16"
        assert not enable_gqa, f"attention of groups in {query.dtype} would store its scores on capability {capability}"
        # torch turns a mask into what it adds to scores.
        bias = None if attn_mask is None else attn_mask.to(query.dtype).expand(*query.shape[:3], key.size(2))
        out, *_ = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, dropout_p, is_causal)
        return out

    return attention
