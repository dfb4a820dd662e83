"""One rank of the real trainer takes one step in a world that does not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from conf.experiment import Experiment
from train_core.costs.traffic import GroupTraffic, Kind
from train_core.dry_run.groups import GroupNames
from train_core.dry_run.meter import Meter
from train_core.dry_run.peak import Kinds
from train_core.dry_run.record import StageBytes, StageStep
from train_core.job.world import World
from train_core.parallel.collectives import Pending
from train_core.parallel.data_parallel import Replicas
from train_core.parallel.mesh import Layout
from train_core.parallel.pipeline_parallel import MicroBatch
from train_core.parallel.schedules import Action, actions_of
from train_core.train import Trainer

Amounts = Counter[tuple[str, Kind]]
"""FLOPs, numbers and bytes of one step, by what is counted and, for collectives, of which kind."""
FLOPS = ("flops", Kind("", ""))


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

    Only as many micro-batches are taken as fill the pipeline up to this stage, and one more. Those after them repeat
    what these did.
    """
    few = enough_micro_batches(experiment, stage)
    memory, amounts = take_step(experiment, stage, few)
    if few < experiment.num_micro_batches:
        repeated = _of_one_more(experiment, stage, few, amounts)
        amounts += _times(repeated, experiment.num_micro_batches - few)
    return StageStep(
        stage=stage,
        num_layers=experiment.layers_per_stage[stage],
        memory=memory,
        flops=amounts[FLOPS],
        traffic=_traffic(amounts),
    )


def enough_micro_batches(experiment: Experiment, stage: int) -> int:
    """So many that this stage holds as many at once as it ever does, and one more; interleaved by groups of stages."""
    group, m = _group_size(experiment), experiment.num_micro_batches
    most = _most_in_flight(actions_of(experiment, stage))
    for few in range(group, m, group):
        if _most_in_flight(actions_of(_with_micro_batches(experiment, few), stage)) == most:
            return min(m, few + group)
    return m


def _group_size(experiment: Experiment) -> int:
    parallel = experiment.parallel
    return parallel.pipeline_parallel_size if parallel.schedule == "interleaved" else 1


def _most_in_flight(actions: Sequence[Action]) -> int:
    """Of forward passes whose activations wait for the last of their backward passes."""
    ends = "weight" if any(action.kind == "weight" for action in actions) else "backward"
    return max(accumulate((action.kind == "forward") - (action.kind == ends) for action in actions))


def _with_micro_batches(experiment: Experiment, num_micro_batches: int) -> Experiment:
    sequences = num_micro_batches * experiment.batch.micro_batch_size * experiment.data_parallel_size
    batch = experiment.batch.model_copy(update={"global_batch_size": sequences})
    return experiment.model_copy(update={"batch": batch})


_REPEATED: dict[Hashable, Amounts] = {}
"""What one more micro-batch adds, by the stages that do the same for it; of one process, which may rehearse several."""


def _of_one_more(experiment: Experiment, stage: int, few: int, amounts: Amounts) -> Amounts:
    """What each micro-batch adds: seen by taking fewer."""
    last = experiment.parallel.pipeline_parallel_size - 1
    alike = (experiment.fingerprint, experiment.layers_per_stage[stage], stage == 0, stage == last)
    if alike not in _REPEATED:
        fewest = _group_size(experiment)
        _, less = take_step(experiment, stage, fewest)
        added = {key: divmod(amount - less[key], few - fewest) for key, amount in amounts.items()}
        assert not any(rest for _, rest in added.values()), "micro-batches differ"
        _REPEATED[alike] = Amounts({key: each for key, (each, _) in added.items()})
    return _REPEATED[alike]


def _times(amounts: Amounts, factor: int) -> Amounts:
    return Amounts({key: amount * factor for key, amount in amounts.items()})


def take_step(experiment: Experiment, stage: int, num_micro_batches: int) -> tuple[StageBytes, Amounts]:
    """Build the first rank of a stage and let it take one step, with so many micro-batches."""
    layout = Layout.of(experiment)
    rank = layout.rank(stage, 0, 0)
    shortened = _with_micro_batches(experiment, num_micro_batches).model_copy(
        update={
            "data": experiment.data.model_copy(update={"source": "synthetic"}),
            "training": experiment.training.model_copy(update={"compile_layers": False}),
        }
    )
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size, store=FakeStore())
    try:
        return _step_of(shortened, World(rank, layout.world_size, torch.device("cpu"), "fake"))
    finally:
        dist.destroy_process_group()


def _step_of(experiment: Experiment, world: World) -> tuple[StageBytes, Amounts]:
    meter = Meter(GroupNames(Layout.of(experiment), world.rank))
    # in one thread, so that passes of autograd are seen where they are asked for
    with torch.autograd.set_multithreading_enabled(False), FakeTensorMode(), meter:
        trainer = Trainer(experiment, world, Path())
        kinds = Kinds(meter, trainer.stage, experiment.model.vocab_size // experiment.parallel.tensor_parallel_size)
        trainer.batches = AnyTokens(experiment)  # type: ignore[assignment]
        replicas = trainer.optimizer.replicas
        assert isinstance(replicas, Replicas), "ZeRO-3 is refused"
        replicas.scatters = replicas.is_sharded and experiment.cluster.device.kind == "gpu"
        with _transfers_that_end_at_once():
            trainer.step(1)
        memory = kinds.at_peak()
    amounts = Amounts({FLOPS: meter.flops})
    amounts.update({("number", key): number for key, number in meter.num_collectives.items()})
    amounts.update({("bytes", key): number for key, number in meter.collective_bytes.items()})
    return memory, amounts


@contextmanager
def _transfers_that_end_at_once() -> Iterator[None]:
    """Nobody receives, so that what was sent would never be let go."""
    is_done = Pending.is_done
    Pending.is_done = lambda self: True  # type: ignore[method-assign]
    try:
        yield
    finally:
        Pending.is_done = is_done  # type: ignore[method-assign]


def _traffic(amounts: Amounts) -> tuple[GroupTraffic, ...]:
    kinds = sorted(key for what, key in amounts if what == "number")
    return tuple(
        GroupTraffic(group=key.group, kind=key.kind, number=amounts["number", key], num_bytes=amounts["bytes", key])
        for key in kinds
    )
