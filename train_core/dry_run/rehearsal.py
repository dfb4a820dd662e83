"""One rank of the real trainer takes one step in a world that does not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from conf.experiment import Experiment
from train_core import dropout
from train_core.costs.traffic import GroupTraffic
from train_core.dry_run.meter import FLOPS, Amounts, Meter, replaced
from train_core.dry_run.micro_batches import enough_micro_batches, group_size, with_micro_batches
from train_core.dry_run.peak import Kinds
from train_core.dry_run.record import StageBytes, StageStep
from train_core.job.world import World
from train_core.model import causal_attention
from train_core.parallel.collectives import Pending
from train_core.parallel.data_parallel import Replicas
from train_core.parallel.mesh import Layout
from train_core.parallel.pipeline_parallel import MicroBatch
from train_core.train import Trainer

Step = tuple[StageBytes, dict[int | None, Amounts]]
"""Memory at the fullest moment, and amounts by the micro-batch in whose passes they were seen; None outside passes."""


class AnyTokens:
    """In place of `data.Batches`: what tokens a micro-batch has does not matter to what is computed."""

    def __init__(self, experiment: Experiment) -> None:
        self.tokens: Tensor = torch.zeros(
            experiment.model.seq_length, experiment.batch.micro_batch_size, dtype=torch.long
        )

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        return MicroBatch(self.tokens, self.tokens)


def rehearse(experiment: Experiment, stage: int) -> StageStep:
    """The step of the first rank of a stage.

    Only as many micro-batches are taken as fill the pipeline up to this stage, and one more. Those that are left out
    would repeat what those between the first and the last do.
    """
    few = enough_micro_batches(experiment, stage)
    memory, amounts_of = take_step(experiment, stage, few)
    amounts = sum(amounts_of.values(), Amounts())
    if few < experiment.num_micro_batches:
        group = group_size(experiment)
        repeated = _of_a_group_between(amounts_of, few, group)
        amounts += _times(repeated, (experiment.num_micro_batches - few) // group)
    return StageStep(
        stage=stage,
        num_layers=experiment.layers_per_stage[stage],
        memory=memory,
        flops=amounts[FLOPS],
        traffic=_traffic(amounts),
    )


def _of_a_group_between(amounts_of: dict[int | None, Amounts], few: int, group: int) -> Amounts:
    """What each group of micro-batches adds that is neither the first nor the last."""
    firsts = range(group, few - group, group)
    groups = [sum((amounts_of[index] for index in range(first, first + group)), Amounts()) for first in firsts]
    assert all(one == groups[0] for one in groups), "micro-batches differ"
    return groups[0]


def _times(amounts: Amounts, factor: int) -> Amounts:
    return Amounts({key: amount * factor for key, amount in amounts.items()})


def take_step(experiment: Experiment, stage: int, num_micro_batches: int) -> Step:
    """Build the first rank of a stage and let it take one step, with so many micro-batches.

    Nothing is read or compiled: what tokens and weights hold does not matter to what is computed.
    """
    layout = Layout.of(experiment)
    rank = layout.rank(stage, 0, 0)
    shortened = with_micro_batches(experiment, num_micro_batches).model_copy(
        update={
            "data": experiment.data.model_copy(update={"source": "synthetic"}),
            "checkpoint": experiment.checkpoint.model_copy(update={"load": None}),
            "training": experiment.training.model_copy(update={"compile_layers": False}),
        }
    )
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size, store=FakeStore())
    try:
        return _step_of(shortened, World(rank, layout.world_size, torch.device("cpu"), "fake"))
    finally:
        dist.destroy_process_group()


def _step_of(experiment: Experiment, world: World) -> Step:
    meter = Meter(world.clock)
    # in one thread, so that passes of autograd are seen where they are asked for
    with (
        torch.autograd.set_multithreading_enabled(False),
        FakeTensorMode(),
        meter,
        meter.resizes_seen(),
        replaced(DeviceMesh, "from_group", _real_mesh(DeviceMesh.from_group)),
    ):
        trainer = Trainer(experiment, world, Path())
        replicas = trainer.optimizer.replicas
        vocabulary = experiment.model.vocab_size // experiment.parallel.tensor_parallel_size
        kinds = Kinds(meter, replicas.held_weights(), vocabulary)
        trainer.batches = AnyTokens(experiment)  # type: ignore[assignment]
        if isinstance(replicas, Replicas):
            replicas.scatters = replicas.is_sharded and experiment.cluster.device.kind == "gpu"
        with _as_on_devices():
            trainer.step(1)
        memory = kinds.at_peak(replicas.held_gradients())
    return memory, meter.amounts_of


def _real_mesh(from_group: Callable[..., DeviceMesh]) -> Callable[..., DeviceMesh]:
    """A mesh of FSDP2 looks at the ranks in it, which it keeps in a tensor."""

    def make(*args: Any, **kwargs: Any) -> DeviceMesh:
        with _disable_current_modes():
            return from_group(*args, **kwargs)

    return make


@contextmanager
def _as_on_devices() -> Iterator[None]:
    """Transfers end at once: nobody receives, so that what was sent would never be let go. Attention drops scores in
    one fused kernel, which keeps no mask, as on a GPU; a CPU's would store the scores.
    """
    with ExitStack() as stack:
        stack.enter_context(replaced(Pending, "is_done", lambda self: True))
        stack.enter_context(replaced(dropout, "has_fused_kernel", lambda query: True))
        stack.enter_context(replaced(dropout.AttentionWithDropout, "_dropped", _attention_without_mask))
        yield


def _attention_without_mask(core: Module, part: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return causal_attention(query, key, value)


def _traffic(amounts: Amounts) -> tuple[GroupTraffic, ...]:
    kinds = sorted(key for what, key in amounts if what == "number")
    return tuple(
        GroupTraffic(group=key.group, kind=key.kind, number=amounts["number", key], num_bytes=amounts["bytes", key])
        for key in kinds
    )
