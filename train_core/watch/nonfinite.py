"""Where the first value that is not finite comes from: the passes of a step, run again under observation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from train_core.parallel.collectives import gather_objects
from train_core.parallel.main_gradient import looked_at
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage
from train_core.watch.hang import ranks_text

WEIGHT, OUTPUT, GRADIENT = range(3)
Look = Callable[[int, str, Tensor], None]


class Finding(NamedTuple):
    """A tensor that is not finite; findings sort by when they came about.

    Attributes:
        phase: WEIGHT, OUTPUT or GRADIENT, in the order of a step.
        stage: the stage of the pipeline, negative in backward, where the last stage comes first.
        order: how many tensors the rank had looked at before; the ranks of a stage look at the same ones.
    """

    phase: int
    micro_batch: int
    stage: int
    order: int
    rank: int
    place: str


def origin_of_nonfinite(stage: Stage, mesh: Mesh, run_passes: Callable[[], object]) -> str:
    """Say in which rank and module the first value that is not finite appears.

    Every rank calls it, with the weights as they were when the value appeared.
    """
    in_weights = _in_weights(stage, mesh)
    in_passes = _in_passes(stage, mesh, run_passes)  # also after a finding, because other ranks wait in the passes
    found = gather_objects(in_weights or in_passes, mesh.world)
    findings = sorted(finding for finding in found if finding is not None)
    if not findings:
        return "passes run again were finite"
    ranks = ranks_text(finding.rank for finding in findings)
    return f"first in {findings[0].place} of rank {findings[0].rank}; {ranks} saw such values"


def _in_weights(stage: Stage, mesh: Mesh) -> Finding | None:
    for order, (name, parameter) in enumerate(stage.named_parameters()):
        if not torch.isfinite(_local(parameter)).all():
            return Finding(WEIGHT, 0, mesh.pipeline.rank, order, mesh.world.rank, f"the weight {name}")
    return None


def _in_passes(stage: Stage, mesh: Mesh, run_passes: Callable[[], object]) -> Finding | None:
    """The first finding of this rank in the passes, which are run again with a hook on everything.

    Compiled layers run as they are written, because the compiler has left out the hooks of what is in them.
    """
    findings: list[Finding] = []
    looks = count()

    def look(phase: int, name: str, values: Tensor) -> None:
        number = next(looks)
        # The first finding of a rank is enough, since such values spread to all that is computed from them.
        if findings or torch.isfinite(values).all():
            return
        micro_batch, passed = mesh.clock.micro_batch, mesh.pipeline.rank
        # A forward pass reaches the last stage last, a backward pass the first one, so that their orders are opposite.
        kind, order = ("output", passed) if phase == OUTPUT else ("gradient", -passed)
        when = "sum over micro-batches" if micro_batch is None else f"micro-batch {micro_batch}"
        findings.append(
            Finding(
                phase,
                sys.maxsize if micro_batch is None else micro_batch,
                order,
                number,
                mesh.world.rank,
                f"the {kind} of {name} ({when})",
            )
        )

    with _observed(stage, look), torch.compiler.set_stance("force_eager"):
        run_passes()
    for name, parameter in stage.named_parameters():
        if parameter.grad is not None:  # ZeRO-3's rows of it, summed over the replicas
            look(GRADIENT, name, _local(parameter.grad))
    return findings[0] if findings else None


@contextmanager
def _observed(stage: Stage, look: Look) -> Iterator[None]:
    """Inside the block, `look` sees what every module puts out, the gradient that reaches it, and every weight's."""
    with ExitStack() as stack:
        # Hooks on modules without children: those around them would only see the same values again.
        for chunk in stage.chunks:
            for name, module in chunk.named_modules():
                if name and not list(module.children()):
                    stack.callback(module.register_forward_hook(_hook(look, name)).remove)
        for name, parameter in stage.named_parameters():
            stack.enter_context(looked_at(parameter, partial(look, GRADIENT, name)))
        yield


def _local(values: Tensor) -> Tensor:
    """The tensor itself; where ZeRO-3 shards it, the rows that this rank has."""
    to_local = getattr(values, "to_local", None)
    return to_local() if to_local else values


def _hook(look: Look, name: str) -> Callable[[nn.Module, Any, Any], None]:
    """A hook that looks at what a module puts out, and in backward at the gradient that reaches it."""

    def forward_hook(module: nn.Module, inputs: Any, out: Any) -> None:
        if not isinstance(out, Tensor):
            return
        look(OUTPUT, name, out.detach())
        if out.requires_grad:
            out.register_hook(partial(look, GRADIENT, name))

    return forward_hook
