"""One rank of the real trainer takes one step in a world that does not exist.

The trainer is made of parts of this module where data, other ranks or a device would be needed (`OF_REHEARSALS`); all
else is what trains. A `StepObserver` sees the operations of the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from conf.plan.experiment import Experiment
from costs.axes import Layout
from costs.counts.traffic import GroupTraffic
from costs.terms import HELD_KINDS
from train_core.data.batches import Batches
from train_core.parallel.collectives import Pending
from train_core.parallel.data_parallel import FlatReplicas, Replicas, ShardReduction
from train_core.parallel.mesh import Channel, Mesh
from train_core.parallel.offload import HostMemory
from train_core.parallel.parallelize import Stage
from train_core.parallel.pipeline_parallel import MicroBatch, Transfers
from train_core.process.world import World
from train_core.rehearsal.counts import StageBytes, StageStep, enough_micro_batches, group_size, with_micro_batches
from train_core.rehearsal.observer import FLOPS, Allocation, Amounts, StepObserver
from train_core.training.trainer import Trainer, TrainerParts

Step = tuple[StageBytes, dict[int | None, Amounts]]
"""Memory at the fullest moment, and amounts by the micro-batch in whose passes they were seen; None outside passes."""


class AnyTokens(Batches):
    """Micro-batches of tokens that are all zero: what they are does not matter to what is computed."""

    def __init__(self, experiment: Experiment, mesh: Mesh, device: torch.device, cache_dir: Path) -> None:
        super().__init__(experiment, mesh, device, cache_dir)
        self.shape = experiment.model.seq_length, experiment.batch.micro_batch_size
        self.zeros: Tensor | None = None

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        if self.zeros is None:  # made in the step, so that it does not count as the rank's state
            self.zeros = torch.zeros(self.shape, dtype=torch.long)
        return MicroBatch(self.zeros, self.zeros)


class OneEndedTransfers(Transfers):
    """Sends that end at once: nobody receives, so that what was sent would never be let go."""

    def send(self, tensor: Tensor, channel: Channel) -> Pending:
        return Pending(super().send(tensor, channel).tensor)


class BesideTheDevice(HostMemory):
    """Memory that is not the device's, so that nothing of it is counted."""

    def take(self, flat: Tensor) -> Any:
        return flat.shape, flat.dtype

    def give_back(self, there: Any, device: torch.device) -> Tensor:
        shape, dtype = there
        return torch.empty(shape, dtype=dtype, device=device)


def replicas_as_on_devices(stage: Stage, mesh: Mesh, experiment: Experiment) -> Replicas:
    """The replicas of a stage, on a CPU, that sum gradients as the cluster's devices do.

    Weights are gathered in the step that changes them, so that one step shows everything.
    """
    if experiment.is_fully_sharded:
        from train_core.parallel.fully_sharded import FullySharded  # here, because FSDP2 takes a second to import

        return FullySharded(stage, mesh, experiment, _real_device_mesh_of)
    on_gpu = experiment.cluster.device.kind == "gpu"
    return FlatReplicas(stage, mesh, experiment, scatters=on_gpu, gathers_late=False, is_wide=on_gpu)


def _real_device_mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    """FSDP2's view of the replicas, not made of fake tensors, because FSDP2 reads the ranks from it."""
    with _disable_current_modes():
        return DeviceMesh.from_group(group, "cpu")


OF_REHEARSALS = TrainerParts(AnyTokens, replicas_as_on_devices, OneEndedTransfers(), BesideTheDevice())


def rehearse_stage(experiment: Experiment, stage: int) -> StageStep:
    """The step of the first rank of a stage.

    Only as many micro-batches are taken as fill the pipeline up to this stage, and one more. Those that are left out
    would repeat what those between the first and the last do.
    """
    few = enough_micro_batches(experiment, stage)
    memory, amounts_of = take_step(experiment, stage, few)
    amounts = sum(amounts_of.values(), Amounts())
    if few < experiment.num_micro_batches:
        group = group_size(experiment)
        repeated, times = _of_a_group_between(amounts_of, few, group), (experiment.num_micro_batches - few) // group
        amounts += Amounts({key: amount * times for key, amount in repeated.items()})
    return StageStep(
        stage=stage,
        num_layers=experiment.layers_per_stage[stage],
        memory=memory,
        flops=amounts[FLOPS],
        traffic=tuple(
            GroupTraffic(group=key.group, kind=key.kind, number=amounts["number", key], num_bytes=amounts["bytes", key])
            for key in sorted(key for what, key in amounts if what == "number")
        ),
    )


def _of_a_group_between(amounts_of: dict[int | None, Amounts], few: int, group: int) -> Amounts:
    """The amounts of one group of micro-batches that is neither the first nor the last; all such are equal."""
    # Neither the first group, which fills the pipeline, nor the last, which drains it.
    firsts = range(group, few - group, group)
    groups = [sum((amounts_of[index] for index in range(first, first + group)), Amounts()) for first in firsts]
    assert all(other == groups[0] for other in groups), "micro-batches differ"
    return groups[0]


def take_step(experiment: Experiment, stage: int, num_micro_batches: int) -> Step:
    """Build the first rank of a stage and let it take one step, with so many micro-batches.

    Nothing is read or compiled: what tokens and weights hold does not matter to what is computed. Attention goes over
    whole sequences, as it is priced, since how long separate documents are is not known here.
    """
    layout = Layout.of(experiment)
    rank = layout.rank(stage)
    shortened = with_micro_batches(experiment, num_micro_batches).model_copy(
        update={
            "data": experiment.data.model_copy(update={"source": "synthetic", "separate_documents": False}),
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
    observer = StepObserver(world.clock)
    # Backward passes run in this thread, and not in autograd's, so that the observer sees them.
    with torch.autograd.set_multithreading_enabled(False), FakeTensorMode(), observer, observer.observe_resizes():
        trainer = Trainer(experiment, world, Path(), OF_REHEARSALS)
        vocabulary = experiment.model.vocab_size // experiment.parallel.tensor_parallel_size
        memory = MemorySorter(observer, resident_weights(trainer.replicas), vocabulary)
        trainer.step(1)
        held = memory.at_peak(resident_gradients(trainer.replicas))
    return held, observer.amounts_of


def resident_weights(replicas: Replicas) -> list[Tensor]:
    """All weights that a rank keeps between steps."""
    return [each.weights for each in replicas.buckets] if isinstance(replicas, FlatReplicas) else replicas.own_weights()


def resident_gradients(replicas: Replicas) -> list[Tensor]:
    """All gradients that a rank keeps between steps."""
    if isinstance(replicas, FlatReplicas):
        shards = [each.shard for each in replicas.reductions if isinstance(each, ShardReduction)]
        return [*(bucket.gradients for bucket in replicas.buckets), *shards]
    gradients: list[Any] = [parameter.grad for _, parameter in replicas.parameters]
    return [gradient.to_local() for gradient in gradients if gradient is not None]


class MemorySorter:
    """Sorts memory by what it holds.

    What lives when the rank has been built is state. Of the rest, activations are what a forward pass leaves behind for
    a backward pass, communication is what was filled by others and has not been taken by a forward pass, logits are
    recognized by their shape, (..., V/t), storages that are emptied and refilled hold weights that ZeRO-3 gathers, and
    anything else is working memory.
    """

    def __init__(self, observer: StepObserver, weights: Iterable[Tensor], vocabulary: int) -> None:
        """`vocabulary` is how many rows of it one tensor rank holds."""
        self.weights, self.gradients = _addresses(weights), set[int]()
        self.built, self.vocabulary, self.observer = len(observer.events), vocabulary, observer

    def at_peak(self, gradients: Iterable[Tensor]) -> StageBytes:
        """Bytes by kind at the fullest moment since the rank was built.

        Args:
            gradients: those that are there after the step.
        """
        self.gradients = _addresses(gradients)
        live = list(accumulate(self.observer.events))
        peak = max(range(self.built, len(live)), key=live.__getitem__)
        held = dict.fromkeys(HELD_KINDS, 0)
        for allocation in self.observer.allocations:
            if allocation.born <= peak and (allocation.freed is None or allocation.freed > peak):
                held[self._kind_of(allocation, peak)] += allocation.num_bytes
        return StageBytes(**held)

    def _kind_of(self, allocation: Allocation, now: int) -> str:
        if allocation.address in self.weights:
            return "weights_bytes"
        if allocation.address in self.gradients and self._holds_gradients(allocation):
            return "gradients_bytes"
        # Weights and gradients are told by their addresses above, so that the optimizer's is what else was there from
        # the start.
        if allocation.born < self.built:
            return "optimizer_bytes"
        if allocation.shape[-1:] == (self.vocabulary,):
            return "logits_bytes"
        if allocation.is_passing or (allocation.is_filled and (allocation.taken is None or allocation.taken > now)):
            return "communication_bytes"
        if allocation.in_backward or not self._outlives_its_forward(allocation):
            return "working_bytes"
        return "activations_bytes"

    def _holds_gradients(self, allocation: Allocation) -> bool:
        """True if memory at the address of gradients holds them, and not another tensor that was freed before."""
        return allocation.born < self.built or allocation.is_passing or allocation.freed is None

    def _outlives_its_forward(self, allocation: Allocation) -> bool:
        events = self.observer.backward_events
        # What still lives when the next backward pass begins was left behind for it or for a later one.
        following = bisect_right(events, allocation.born)
        return following < len(events) and (allocation.freed is None or allocation.freed > events[following])


def _addresses(tensors: Iterable[Tensor]) -> set[int]:
    """The addresses of storages that last as long as the rank."""
    return {tensor.untyped_storage()._cdata for tensor in tensors}
