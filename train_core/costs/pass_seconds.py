"""What each stage of a pipeline takes for one micro-batch, chunk by chunk, and for what follows on the last of them.

The same seconds as those of `estimate`, before its closed form puts them together (`step.schedule`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from conf.chunks import chunk_layers
from conf.setup import Setup
from train_core.costs.estimate import plan_of, setting_of
from train_core.costs.setting import Floats, Plans, Setting
from train_core.costs.stages import StageGroup, each_stage, listed_stages
from train_core.costs.step.step_time import (
    Passes,
    hop_seconds,
    reduction_seconds,
    slower_share,
    stage_passes,
    update_seconds,
)
from train_core.costs.trainers.implementation import Implementation
from train_core.costs.trainers.trisweep import TRISWEEP
from train_core.costs.work import Work, work_of


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds of one micro-batch in one model chunk of a stage.

    Attributes:
        forward: the work alone, without collectives; `input_gradient` and `weight_gradient` likewise.
        forward_communication: what no work hides of collectives and of the transfer to the next stage.
    """

    forward: float
    forward_communication: float
    input_gradient: float
    weight_gradient: float
    backward_communication: float


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What one rank of a stage does in a step.

    Attributes:
        chunks: for each model chunk of the stage, the seconds of a micro-batch.
        reduction: seconds of collectives over the replicas after its last backward pass.
        update: seconds of the optimizer.
        slowest_device: seconds by which the slowest of all devices is behind, for which all others wait.
    """

    layers: int
    chunks: tuple[PassSeconds, ...]
    reduction: float
    update: float
    slowest_device: float


def stage_times(setup: Setup, implementation: Implementation = TRISWEEP) -> tuple[StageTimes, ...]:
    """The stages of a plan, first to last, each rank on a device of its own.

    Args:
        setup: a job on devices of one type.
    """
    assert setup.mixed is None, "each type of devices would have a setting of its own"
    setting, plans = setting_of(setup, implementation), plan_of(setup)
    work, stages = work_of(setting, plans), each_stage(listed_stages(setup.layers_per_stage))
    chunks = [_chunks(setting, plans, work, stages, index) for index in range(len(stages.layers))]
    passes = stage_passes(setting, plans, work, stages)
    busy = _columns(stages, passes.forward + passes.input_gradient + passes.weight_gradient)
    reductions = _columns(stages, _reductions(setting, plans, work, stages, busy))
    updates = _columns(stages, update_seconds(setting, plans, work, stages))
    # As in the closed form, the slowest device is behind by a share of the computation of the stage with the most.
    behind = float(slower_share(setting, plans.world_size)[0] * plans.num_micro_batches[0] * busy.max())
    return tuple(
        StageTimes(int(layers), of_stage, float(reduction), float(update), behind)
        for layers, of_stage, reduction, update in zip(stages.layers, chunks, reductions, updates, strict=True)
    )


def _chunks(setting: Setting, plans: Plans, work: Work, stages: StageGroup, index: int) -> tuple[PassSeconds, ...]:
    """The chunks of one stage: layers by their number, the embedding with the first chunk, the head with the last."""
    stage = stages.rows(slice(index, index + 1))
    none = np.zeros_like(stage.is_first)
    whole = stage_passes(setting, plans, work, stage)
    layers_alone = stage_passes(setting, plans, work, replace(stage, is_first=none, is_last=none))
    num_chunks, layers = int(plans.virtual_pipeline_size[0]), int(stage.layers[0])
    of_chunks = chunk_layers(layers, num_chunks, is_first_stage=index == 0)
    end = 0 if stage.is_first[0] else num_chunks - 1
    hop = float(hop_seconds(setting, plans, work)[0]) / num_chunks
    return tuple(
        _pass_seconds(layers_alone, whole, share / max(layers, 1), number == end, hop)
        for number, share in enumerate(of_chunks)
    )


def _pass_seconds(layers: Passes, whole: Passes, share: float, has_end: bool, hop: float) -> PassSeconds:
    """A share of the layers, and with it whatever of the stage is not layers where the chunk holds that."""

    def seconds(*names: str) -> float:
        return sum(_of_chunk(getattr(layers, name), getattr(whole, name), share, has_end) for name in names)

    return PassSeconds(
        forward=seconds("forward"),
        forward_communication=seconds("tensor_forward", "gathers_forward") + hop,
        input_gradient=seconds("input_gradient"),
        weight_gradient=seconds("weight_gradient"),
        backward_communication=seconds("tensor_backward", "gathers_backward") + hop,
    )


def _of_chunk(layers: Floats, whole: Floats, share: float, has_end: bool) -> float:
    of_layers, of_all = float(np.ravel(layers)[0]), float(np.ravel(whole)[0])
    return share * of_layers + has_end * (of_all - of_layers)


def _reductions(setting: Setting, plans: Plans, work: Work, stages: StageGroup, hiding: Floats) -> Floats:
    """Only the first and the last stage add up a tied embedding."""
    ends = reduction_seconds(setting, plans, work, stages, hiding)
    untied = replace(setting, model=setting.model.model_copy(update={"tied_embeddings": False}))
    inner = reduction_seconds(untied, plans, work, stages, hiding)
    seconds: Floats = np.where(stages.is_first | stages.is_last, ends, inner)
    return seconds


def _columns(stages: StageGroup, column: Floats) -> Floats:
    """An entry for every stage, also where all have the same."""
    return np.broadcast_to(column, stages.layers.shape)
