"""A search for the source of the first value that is not finite: the passes run again under observation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from conf.errors import TrainingError
from costs.axes import ENDS, Layout
from costs.shared_rules import Treatment
from train_core.optimizers.optimizer import StepResult, flat_norm
from train_core.parallel.groups import gather_objects
from train_core.parallel.main_gradient import MainGradient, main_gradient
from train_core.parallel.mesh import Mesh
from train_core.parallel.parallelize import Stage
from train_core.watch.hang import ranks_text

MASTER, WEIGHT, OUTPUT, GRADIENT = range(4)
ALL_MICRO_BATCHES = sys.maxsize
"""Stands for the number of a micro-batch where a value is a sum over all of them."""

HARDWARE_REMEDY = (
    "The same passes gave finite values, so suspect a device or link of {ranks} and not the learning rate: leave its"
    " node out, and start again."
)
WEIGHT_REMEDY = (
    "Every update so far had a finite gradient, so suspect the device of rank {rank}, or the checkpoint that it began"
    " with, and not the learning rate: leave its node out, and start again."
)
ONE_REPLICA = " Rank {rank} alone saw it: if it comes again with other data, suspect its device."
Look = Callable[[int, int, str, Tensor], None]
"""Is told of a phase, of the part of the model in the order in which passes reach it, of a name and of its values."""


class Finding(NamedTuple):
    """A tensor that is not finite; findings sort by when they came about.

    Attributes:
        phase: MASTER, WEIGHT, OUTPUT or GRADIENT. Masters come first, because under ZeRO one rank updates what all
            replicas then hold.
        stage: the part of the model, chunk after chunk and in it stage after stage, negative in backward.
        order: how many tensors the rank had looked at before; the ranks of a stage look at the same ones.
    """

    phase: int
    micro_batch: int
    stage: int
    order: int
    rank: int
    place: str


class Origin(NamedTuple):
    """The source of the value, in words that end a sentence.

    Attributes:
        blamed: the rank where it appeared first; None where several saw it at the same point.
        remedy: what to do where the learning rate is not the cause; None where it may be.
        doubt: a sentence to be added to what is done about a learning rate.
    """

    words: str
    blamed: int | None
    remedy: str | None = None
    doubt: str = ""


class OwnShare(NamedTuple):
    """The finiteness of what one rank added to a step's loss and to the gradient's norm, each by itself.

    Attributes:
        gradient: the parts that are sums over replicas alone.
        sums: the groups, such as `tensor`, over which a part was summed that was not finite.
    """

    loss: bool
    gradient: bool
    sums: tuple[str, ...]


def own_share_of(result: StepResult, treatments: Sequence[Treatment], mesh: Mesh) -> OwnShare | None:
    """What this rank added to a step, before passes run again; None where the result does not hold it."""
    if result.summands is None:
        return None
    loss_share, gradients = result.summands
    bad = [
        treatment
        for treatment, gradient in zip(treatments, gradients, strict=True)
        if mesh.counts(treatment) and not flat_norm(gradient).isfinite()
    ]
    return OwnShare(
        bool(loss_share.isfinite()),
        gradient=all(treatment.summed_over for treatment in bad),
        sums=tuple(sorted({name for treatment in bad for name in treatment.summed_over})),
    )


def origin_of_nonfinite(
    stage: Stage,
    mesh: Mesh,
    masters: Iterable[tuple[str, Tensor]],
    is_finite_again: Callable[[], bool],
    own_share: OwnShare | None = None,
) -> Origin:
    """Say in which rank and module the first value that is not finite appears.

    Every rank calls it, with the weights as they were when the value appeared.

    Args:
        masters: the fp32 weights that this rank updates, by name.
        is_finite_again: runs the passes and their sums again.
        own_share: what this rank had added to the sums when the value appeared.
    """
    in_weights = _in_weights(MASTER, masters, mesh) or _in_weights(WEIGHT, stage.named_parameters(), mesh)
    # The passes run again also after a finding, because other ranks wait in them.
    in_passes, is_finite = _in_passes(stage, mesh, is_finite_again)
    found = gather_objects((in_weights or in_passes, own_share), mesh.world)
    findings = sorted(finding for finding, _ in found if finding is not None)
    if findings:
        return _lasting(findings, mesh.layout)
    if not is_finite:
        return Origin("although every output and gradient is finite: they are too large to be summed", None)
    shares = [share for _, share in found if share is not None]
    return _passing(suspects(mesh.layout, shares) if shares else list(range(mesh.world.size)))


def nonfinite_error(step: int, result: StepResult, loss_scale: float, limit: int, origin: Origin) -> TrainingError:
    """The error that ends a training after this step, under this loss scale.

    Args:
        limit: so many overflows in a row have ended it, where the step has overflowed.
    """
    what = f"training diverged at step {step}: loss {result.loss}, gradient norm {result.gradient_norm}"
    remedy = "Lower training.learning_rate or lengthen training.learning_rate_warmup_steps."
    if result.overflowed:
        row = f"fp16 gradients overflowed in {limit} steps in a row, the last at step {step}"
        what = f"{row} with a loss scale of {loss_scale:g}"
        remedy = "Lower training.learning_rate, or use precision=bf16."
    return TrainingError(
        f"{what}, {origin.words}",
        (origin.remedy or remedy) + origin.doubt,
        origin.blamed,
        suspects_device=origin.remedy is not None,
    )


def _lasting(findings: list[Finding], layout: Layout) -> Origin:
    first = findings[0]
    # A true divergence, or a bad weight that all replicas were given, shows on several ranks at the same point.
    alike = [finding.rank for finding in findings if finding[:-2] == first[:-2]]
    beside = any(_is_independent(finding, first, layout) for finding in findings)
    seen_by = ranks_text(finding.rank for finding in findings)
    words = f"first in {first.place} of {ranks_text(alike)}; {seen_by} saw such values"
    if beside or len(alike) > 1:
        return Origin(words, None)
    if first.phase in (MASTER, WEIGHT):
        return Origin(words, first.rank, WEIGHT_REMEDY.format(rank=first.rank))
    has_others = len(layout.exchanging(first.rank)) < layout.world_size
    return Origin(words, first.rank, doubt=ONE_REPLICA.format(rank=first.rank) if has_others else "")


def _is_independent(finding: Finding, first: Finding, layout: Layout) -> bool:
    """True if another replica found it by itself: until gradients are summed, replicas give each other nothing."""
    is_elsewhere = finding.rank not in layout.exchanging(first.rank)
    return finding.phase == first.phase and finding.micro_batch != ALL_MICRO_BATCHES and is_elsewhere


def _passing(ranks: list[int]) -> Origin:
    one = len(ranks) == 1
    source = ranks_text(ranks) if one else f"one of {ranks_text(ranks)}"
    words = f"which did not come again when the passes were repeated; its source is {source}"
    return Origin(words, ranks[0] if one else None, HARDWARE_REMEDY.format(ranks=source))


def _in_weights(phase: int, named: Iterable[tuple[str, Tensor]], mesh: Mesh) -> Finding | None:
    for order, (name, values) in enumerate(named):
        if not torch.isfinite(_local(values)).all():
            return Finding(phase, 0, mesh.pipeline.rank, order, mesh.world.rank, f"the weight {name}")
    return None


def _in_passes(stage: Stage, mesh: Mesh, is_finite_again: Callable[[], bool]) -> tuple[Finding | None, bool]:
    """The first finding of this rank in the passes, which are run again with a hook on everything, and how they end.

    Compiled layers run as they are written, because the compiler has left out the hooks of what is in them.
    """
    findings: list[Finding] = []
    looks = count()

    def look(phase: int, part: int, name: str, values: Tensor) -> None:
        number = next(looks)
        # The first finding of a rank is enough, since such values spread to all that is computed from them.
        if findings or torch.isfinite(values).all():
            return
        micro_batch = mesh.clock.micro_batch
        # A forward pass reaches the last part last, a backward pass the first one, so that their orders are opposite.
        kind, order = ("output", part) if phase == OUTPUT else ("gradient", -part)
        when = "sum over micro-batches" if micro_batch is None else f"micro-batch {micro_batch}"
        findings.append(
            Finding(
                phase,
                ALL_MICRO_BATCHES if micro_batch is None else micro_batch,
                order,
                number,
                mesh.world.rank,
                f"the {kind} of {name} ({when})",
            )
        )

    with _observe(stage, mesh, look), torch.compiler.set_stance("force_eager"):
        is_finite = is_finite_again()
    for name, parameter in stage.named_parameters():
        if parameter.grad is not None:  # ZeRO-3's rows of it, summed over the replicas
            look(GRADIENT, 0, name, _local(parameter.grad))
    return (findings[0] if findings else None), is_finite


@contextmanager
def _observe(stage: Stage, mesh: Mesh, look: Look) -> Iterator[None]:
    """Inside the block, `look` sees what every module puts out, the gradient that reaches it, and every weight's."""
    with ExitStack() as stack:
        # Hooks on modules without children: those around them would only see the same values again.
        for index, chunk in enumerate(stage.chunks):
            # A micro-batch goes round all stages once for each chunk.
            part = index * mesh.pipeline.size + mesh.pipeline.rank
            for name, module in chunk.named_modules():
                if name and not list(module.children()):
                    stack.callback(module.register_forward_hook(_hook(look, part, name)).remove)
            for name, parameter in chunk.named_parameters():
                stack.enter_context(look_at_additions(parameter, partial(look, GRADIENT, part, name)))
        yield


def _local(values: Tensor) -> Tensor:
    """The tensor itself; where ZeRO-3 shards it, the rows that this rank has."""
    to_local = getattr(values, "to_local", None)
    return to_local() if to_local else values


def _hook(look: Look, part: int, name: str) -> Callable[[nn.Module, Any, Any], None]:
    """A hook that looks at what a module puts out, and in backward at the gradient that reaches it."""

    def forward_hook(module: nn.Module, inputs: Any, out: Any) -> None:
        if not isinstance(out, Tensor):
            return
        look(OUTPUT, part, name, out.detach())
        if out.requires_grad:
            out.register_hook(partial(look, GRADIENT, part, name))

    return forward_hook


class LookingListener:
    """Looks at a buffer after every addition, before its own listener hears of it."""

    def __init__(self, gradient: MainGradient, look: Callable[[Tensor], None]) -> None:
        self.buffer, self.listener, self.look = gradient.buffer, gradient.listener, look

    def before_gradient(self) -> None:
        self.listener.before_gradient()

    def after_gradient(self) -> None:
        self.look(self.buffer)
        self.listener.after_gradient()


@contextmanager
def look_at_additions(parameter: Tensor, look: Callable[[Tensor], None]) -> Iterator[None]:
    """Inside the block, `look` is called with the buffer whenever a gradient has been added to it.

    It is never called where the parameter has no buffer.
    """
    if (gradient := main_gradient(parameter)) is None:
        yield
        return
    listener, gradient.listener = gradient.listener, LookingListener(gradient, look)
    try:
        yield
    finally:
        gradient.listener = listener


def suspects(layout: Layout, shares: Sequence[OwnShare]) -> list[int]:
    """The ranks whose device or links may have made the value, in rank order; all of them where nothing tells.

    Args:
        shares: what each rank of the world added to the loss and the norm, in rank order.
    """
    everybody = list(range(layout.world_size))
    # A loss is a sum over nothing but one replica's own passes, through all of its stages.
    if wrong := [rank for rank in everybody if not shares[rank].loss]:
        return sorted({other for rank in wrong for other in layout.exchanging(rank)})
    found = _of_gradients(layout, [rank for rank in everybody if not shares[rank].gradient])
    return found or _of_sums(layout, shares) or everybody


def _of_gradients(layout: Layout, bad: list[int]) -> list[int]:
    """The stage that backward passes reach first, on every replica: gradients are summed before they are looked at.

    With several chunks on a rank that may be any stage, as a share does not say of which chunk it is.
    """
    if layout.pipeline_is_ring:
        return sorted(
            {other for rank in bad for stage in layout.ranks(rank, "pipeline") for other in layout.summing(stage)}
        )
    last = max((layout.coordinates(rank).pipeline for rank in bad), default=0)
    first_hit = [rank for rank in bad if layout.coordinates(rank).pipeline == last]
    return sorted({other for rank in first_hit for other in layout.summing(rank)})


def _of_sums(layout: Layout, shares: Sequence[OwnShare]) -> list[int]:
    """All whose gradients went into such a sum: over an axis, or over the two ends of the pipeline."""
    found = set[int]()
    for rank, share in enumerate(shares):
        for group in share.sums:
            summed = layout.ends(rank) if group == ENDS else layout.ranks(rank, group)
            found |= {replica for other in summed for replica in layout.summing(other)}
    return sorted(found)
