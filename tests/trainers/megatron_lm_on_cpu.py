"""Megatron-LM's pretrain_gpt.py on CPU ranks: what it asks of `torch.cuda` is answered on the CPU.

`megatron_lm_on_cpu.py CHECKOUT --flags ...`, in an environment with torch and triton. Nothing of the checkout changes.
"""

from __future__ import annotations

import resource
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

KINDS = ("FloatTensor", "IntTensor", "LongTensor", "ByteTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor")
MADE_ON_A_DEVICE = (
    *("tensor", "empty", "zeros", "ones", "full", "arange", "randint", "rand", "randn", "as_tensor"),
    *("empty_like", "zeros_like", "ones_like", "linspace", "tril"),
)


class Properties:
    """Those of a device that has all that is asked for."""

    major, minor, total_memory, name, multi_processor_count = 9, 0, 24 << 30, "CPU", 2


class Stream:
    """A stream or an event, which has nothing to order: all is done when it was asked for."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _resident_bytes(*_: object, **__: object) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory_stats(*_: object, **__: object) -> dict[str, int]:
    names = ("allocated_bytes.all.current", "allocated_bytes.all.peak")
    reserved = ("reserved_bytes.all.current", "reserved_bytes.all.peak")
    return {"allocation.all.current": 0} | dict.fromkeys((*names, *reserved), _resident_bytes())


def _is_cuda(device: object) -> bool:
    return type(device) is int or (isinstance(device, str | torch.device) and str(device).startswith("cuda"))


def _on_the_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*words: Any, **options: Any) -> Any:
        if _is_cuda(options.get("device")):
            options["device"] = "cpu"
        return make(*words, **options)

    return made


def _of_its_own(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A function for this name alone: torch has a table of its functions, in which none may stand twice."""

    def own(*words: Any, **options: Any) -> Any:
        return answer(*words, **options)

    return own


def _nothing(*_: object, **__: object) -> None:
    return None


def _replace_cuda() -> None:
    cuda: Any = torch.cuda
    answers = {
        "get_device_properties": lambda *_, **__: Properties,
        "get_device_capability": lambda *_, **__: (9, 0),
        "get_device_name": lambda *_: "CPU",
        "device_count": lambda: 2,
        "current_device": lambda: 0,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "memory_stats": _memory_stats,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "nvtx": types.SimpleNamespace(range_push=_nothing, range_pop=_nothing),
        "Stream": Stream,
        "Event": Stream,
    }
    memory = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    silent = ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all")
    streams = ("stream", "current_stream", "default_stream")
    answers |= dict.fromkeys(memory, _resident_bytes) | dict.fromkeys(silent, _nothing)
    answers |= dict.fromkeys(streams, lambda *_: Stream())
    answers |= {kind: lambda values, kind=kind, **_: getattr(torch, kind)(values) for kind in KINDS}
    for name, answer in answers.items():
        setattr(cuda, name, _of_its_own(answer) if isinstance(answer, types.FunctionType) else answer)


def _keep_tensors_on_the_cpu() -> None:
    tensor: Any = torch.Tensor
    to, type_of = tensor.to, tensor.type
    tensor.cuda = torch.nn.Module.cuda = lambda owner, *_, **__: owner  # type: ignore[method-assign]
    for name in MADE_ON_A_DEVICE:
        setattr(torch, name, _on_the_cpu(getattr(torch, name)))

    def moved(owner: Any, *words: Any, **options: Any) -> Any:
        places = ["cpu" if isinstance(word, str | torch.device) and _is_cuda(word) else word for word in words]
        return _on_the_cpu(to)(owner, *places, **options)

    def named(owner: Any, *words: Any, **options: Any) -> Any:
        # It chooses buckets of gradients by the names that tensors of a device have.
        return type_of(owner, *words, **options) if words or options else f"torch.cuda.{type_of(owner)[6:]}"

    tensor.to, tensor.type = moved, named


def _start(checkout: str) -> None:
    if not hasattr(typing, "override"):  # of Python 3.12, which it asks for
        setattr(typing, "override", lambda method: method)  # noqa: B010
    sys.path.insert(0, checkout)
    _replace_cuda()
    _keep_tensors_on_the_cpu()
    import megatron.core.tensor_parallel.random as states  # type: ignore[import-not-found]

    states._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    states._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    sys.argv = ["pretrain_gpt.py", *sys.argv[2:]]
    program = Path(checkout, "pretrain_gpt.py")
    # Not by runpy: processes that it spawns for checkpoints would run the program as their main module, without this.
    exec(compile(program.read_text(), program, "exec"), {"__name__": "__main__", "__file__": str(program)})


if __name__ == "__main__":
    _start(sys.argv[1])
