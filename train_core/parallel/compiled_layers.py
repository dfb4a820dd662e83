"""Layers compiled by torch, in parts.

The products start collectives and add to main gradients in backward, which a compiled graph could not do; what lies
between them (norms, activations, residual sums) is bound by memory, and fusing is what speeds it up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from conf.errors import ConfigError
from train_core.model.mixture import MixtureOfExperts
from train_core.model.transformer import LatentAttention, takes_groups
from train_core.parallel.context_parallel import ContextAttention
from train_core.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, SharedKey

BACKEND = "inductor"
NOT_COMPILED = (ColumnParallelLinear, RowParallelLinear, SharedKey, ContextAttention, MixtureOfExperts)
Compiler = Callable[[nn.Module], Callable[..., torch.Tensor]]


def compiler_of(device: torch.device) -> Compiler:
    """The compiler that turns a layer into its compiled forward function.

    Raises:
        ConfigError: the machine lacks what torch's compiler needs.
    """
    missing = _missing_triton() if device.type == "cuda" else _missing_cpp_compiler()
    if missing:
        remedy = f"Install {missing}, or set training.compile_layers=false."
        raise ConfigError("training.compile_layers", True, f"needs {missing}, which is not found here", remedy)
    return _compile


def _compile(layer: nn.Module) -> Callable[..., torch.Tensor]:
    # It asks the driver, which the compiler cannot trace. Marked here, because the mark imports the compiler.
    torch.compiler.assume_constant_result(takes_groups)
    # Functions are replaced, and modules not wrapped, because a wrapper would change the names of parameters.
    for module in layer.modules():
        # How many rows an expert gets differs from pass to pass, for each of which there would be code of its own.
        if isinstance(module, NOT_COMPILED):
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
        if isinstance(module, LatentAttention):  # whose core is a function of our own on a CPU
            module.core.forward = torch.compiler.disable(module.core.forward)  # type: ignore[method-assign]
    # All passes have activations of one shape, so that code for any shape would only be slower.
    return torch.compile(layer.forward, backend=BACKEND, dynamic=False)


def _missing_triton() -> str | None:
    from torch.utils._triton import has_triton

    return None if has_triton() else "triton"


def _missing_cpp_compiler() -> str | None:
    """The compiler that torch misses on a CPU; asking imports torch's compiler, which takes a second."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler"
    return None
