"""Price many plans of one setting at once, for searches; `estimate` takes time and memory from the same `step`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costs.setting import Floats, Integers, Plans, Setting
from costs.stages import spread_stages
from costs.step.priced_stage import PricedStage, priced_stages
from costs.step.stage_memory import group_memory
from costs.step.step_time import step_columns
from costs.terms import StepColumns
from costs.work import Work, work_of


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of many plans, in columns, (n,).

    Attributes:
        step: where the seconds of a step go.
        step_seconds: the sum of those seconds.
        peak_memory_bytes: bytes on the stage that needs most.
        worst_stage: index of that stage; the first one of equals.
    """

    step: StepColumns
    step_seconds: Floats
    peak_memory_bytes: Integers
    worst_stage: Integers


def price(setting: Setting, plans: Plans) -> Prices:
    stages = _stages(setting, plans, work_of(setting, plans))
    peak, worst = _peak_memory(stages)
    step = step_columns(stages)
    return Prices(step, step.total_seconds, peak, worst)


def _stages(setting: Setting, plans: Plans, work: Work) -> list[PricedStage]:
    return priced_stages(setting, plans, work, spread_stages(plans, setting.model.num_layers))


def first_stage_bytes(setting: Setting, plans: Plans, work: Work) -> Integers:
    """Bytes of the first stage, which `peak_bytes` never undercuts."""
    return group_memory(_stages(setting, plans, work)[0]).total_bytes


def peak_bytes(setting: Setting, plans: Plans, work: Work, first_stage: Integers | None = None) -> Integers:
    """Bytes of the worst stage, without the time: what a search filters by first.

    Args:
        first_stage: `first_stage_bytes` of these plans, if they are known already.
    """
    first, *others = _stages(setting, plans, work)
    peak = group_memory(first).total_bytes if first_stage is None else first_stage
    for stage in others:
        total, count = group_memory(stage).total_bytes, stage.group.count
        # A group is empty in some plans; where it is in none, no array has to be made for that.
        peak = np.maximum(peak, total if np.all(count > 0) else np.where(count > 0, total, 0))
    return peak


def price_step(setting: Setting, plans: Plans, work: Work) -> StepColumns:
    """Seconds of one step, without the memory: for plans that are known to fit."""
    return step_columns(_stages(setting, plans, work))


def _peak_memory(stages: Sequence[PricedStage]) -> tuple[Integers, Integers]:
    peak, worst = np.asarray(0), np.asarray(0)
    for stage in stages:
        memory = group_memory(stage)
        total = np.where(stage.group.count > 0, memory.total_bytes, 0)
        # The comparison is strict, so that the first of equally full stages is named.
        fuller = total > peak
        peak, worst = np.where(fuller, total, peak), np.where(fuller, memory.stage, worst)
    return peak, worst
