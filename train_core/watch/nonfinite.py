"""Where the first value that is not finite comes from: the passes of a step, run again under observation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from train_core.parallel.collectives import gather_objects
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage
from train_core.watch.hang import ranks_text

WEIGHT, OUTPUT, GRADIENT = range(3)


class Finding(NamedTuple):
    """A tensor that is not finite; findings sort by when they came about.

    Attributes:
        phase: weights come before the forward pass, that before the backward pass.
        stage: of the pipeline, negative in backward, where the last stage comes first.
        order: how many tensors the rank had looked at before; the ranks of a stage look at the same ones.
    """

    phase: int
    micro_batch: int
    stage: int
    order: int
    rank: int
    place: str


def origin_of_nonfinite(stage: Stage, mesh: Mesh, run_passes: Callable[[], object]) -> str:
    """In words where the first such value appears: rank and module. Every rank calls it, with unchanged weights."""
    in_weights = _in_weights(stage, mesh)
    in_passes = _in_passes(stage, mesh, run_passes)  # in any case, because other ranks wait in them
    found = gather_objects(in_weights or in_passes, mesh.world)
    findings = sorted(finding for finding in found if finding is not None)
    if not findings:
        return "passes run again were finite"
    ranks = ranks_text(finding.rank for finding in findings)
    return f"first in {findings[0].place} of rank {findings[0].rank}; {ranks} saw such values"


def _in_weights(stage: Stage, mesh: Mesh) -> Finding | None:
    for order, (name, parameter) in enumerate(stage.named_parameters()):
        to_local = getattr(parameter, "to_local", None)  # ZeRO-3's shards: each rank looks at its own
        if not torch.isfinite(to_local() if to_local else parameter).all():
            return Finding(WEIGHT, 0, mesh.pipeline.rank, order, mesh.world.rank, f"the weight {name}")
    return None


def _in_passes(stage: Stage, mesh: Mesh, run_passes: Callable[[], object]) -> Finding | None:
    findings: list[Finding] = []
    looks = count()

    def look(values: Tensor, phase: int, name: str) -> None:
        number = next(looks)
        if findings or torch.isfinite(values).all():
            return
        micro_batch, passed = mesh.clock.micro_batch or 0, mesh.pipeline.rank
        kind, order = ("output", passed) if phase == OUTPUT else ("gradient", -passed)
        place = f"the {kind} of {name} (micro-batch {micro_batch})"
        findings.append(Finding(phase, micro_batch, order, number, mesh.world.rank, place))

    handles = [
        module.register_forward_hook(_hook(look, name))
        for chunk in stage.chunks
        for name, module in chunk.named_modules()
        if name and not list(module.children())
    ]
    run_passes()
    for handle in handles:
        handle.remove()
    return findings[0] if findings else None


def _hook(look: Callable[[Tensor, int, str], None], name: str) -> Callable[[nn.Module, Any, Any], None]:
    """Looks at what a module puts out, and in backward at the gradient that reaches it."""

    def forward_hook(module: nn.Module, inputs: Any, out: Any) -> None:
        if not isinstance(out, Tensor):
            return
        look(out.detach(), OUTPUT, name)
        if out.requires_grad:
            out.register_hook(lambda gradient: look(gradient, GRADIENT, name))  # type: ignore[no-untyped-call]

    return forward_hook
