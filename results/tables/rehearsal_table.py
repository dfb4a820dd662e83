"""A rehearsal's numbers beside the cost model's, for a terminal and for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from conf.plan.experiment import Experiment
from conf.units import GIGA, TERA
from costs import estimate
from costs.counts.traffic import GroupTraffic, Kind, stage_traffic
from costs.terms import HELD_KINDS
from results.render.table import Cell, Table, text
from results.render.units import ABSENT, count, error_percent, gib, significant
from train_core.rehearsal.counts import Rehearsal, StageBytes, StageStep

HEADINGS = {
    "weights_bytes": "weights",
    "gradients_bytes": "grads",
    "optimizer_bytes": "optim",
    "activations_bytes": "activ",
    "working_bytes": "work",
    "logits_bytes": "logits",
    "communication_bytes": "comm",
}


@dataclass(frozen=True)
class StagePrediction:
    """The predicted step of a stage's first rank; `StageStep` holds what was counted there."""

    stage: int
    memory: StageBytes
    traffic: tuple[GroupTraffic, ...]


@dataclass(frozen=True)
class Prediction:
    """The cost model's figures for everything that a `Rehearsal` counts."""

    flops: int
    stages: tuple[StagePrediction, ...]


def predict(experiment: Experiment) -> Prediction:
    """Predict with the cost model alone; nothing is run."""
    predicted = estimate(experiment)
    stages = tuple(
        StagePrediction(
            stage, StageBytes(**{name: getattr(memory, name) for name in HELD_KINDS}), stage_traffic(experiment, stage)
        )
        for stage, memory in enumerate(predicted.stages)
    )
    return Prediction(predicted.hardware_flops, stages)


def memory_table(rehearsal: Rehearsal, predicted: Prediction) -> Table:
    """The memory of every stage at its fullest moment, in GiB, split by what it is held for."""
    columns = ("stage", "", *HEADINGS.values(), "total", "off %")
    rows = []
    for stage, other in zip(rehearsal.stages, predicted.stages, strict=True):
        counted, expected = stage.memory.total_bytes, other.memory.total_bytes
        rows.append(_row(stage.stage, "counted", *_gibs(stage.memory), ""))
        rows.append(_row("", "predicted", *_gibs(other.memory), error_percent(expected, counted)))
    return Table(
        columns,
        tuple(rows),
        frozenset(columns) - {""},
        title="Memory of one rank of every stage at its fullest moment, GiB",
        caption="What tensors take; without the framework's share and gaps. predicted: by the cost model.",
        is_dense=True,
    )


def _row(*cells: object) -> tuple[Cell, ...]:
    return tuple(map(text, cells))


def _gibs(memory: StageBytes) -> list[str]:
    return [*(gib(getattr(memory, name)) for name in HEADINGS), gib(memory.total_bytes)]


def work_table(rehearsal: Rehearsal, predicted: Prediction) -> Table:
    """Products and collectives of a step; stages that do the same share their rows."""
    columns = ("stages", "TFLOP", "group", "collective", "number", "predicted", "GB", "predicted")
    rows = []
    for stages, alike, other in _equal_stages(rehearsal, predicted):
        named = [stages, significant(alike.flops / TERA, 4)]
        counted, expected = ({Kind(one.group, one.kind): one for one in each.traffic} for each in (alike, other))
        for kind in sorted(counted.keys() | expected.keys()):
            both = [traffic.get(kind) for traffic in (counted, expected)]
            numbers = [count(one.number) if one else ABSENT for one in both]
            sizes = [significant(one.num_bytes / GIGA) if one else ABSENT for one in both]
            rows.append(_row(*named, kind.group, kind.kind.replace("_", "-"), *numbers, *sizes))
            named = ["", ""]  # a group of stages is named on its first line only
        if any(named):  # they communicate nothing
            rows.append(_row(*named, *[ABSENT] * 6))
    return Table(
        columns,
        tuple(rows),
        frozenset(columns) - {"group", "collective"},
        title="One rank's step",
        caption="Counted; predicted: by the cost model, of the column before it. GB: 10^9 bytes of the whole tensors"
        " that are summed, gathered, scattered or sent.",
        is_dense=True,
    )


def _equal_stages(rehearsal: Rehearsal, predicted: Prediction) -> Iterator[tuple[str, StageStep, StagePrediction]]:
    """Runs of stages that do the same, and of which the same is predicted."""
    # A pipeline has dozens of stages, most of which differ only in their number.
    pairs = zip(rehearsal.stages, predicted.stages, strict=True)
    for _, run in groupby(pairs, key=lambda pair: (pair[0].flops, pair[0].traffic, pair[1].traffic)):
        stages = list(run)
        (first, other), (last, _) = stages[0], stages[-1]
        yield str(first.stage) if first is last else f"{first.stage}-{last.stage}", first, other


def comparison(rehearsal: Rehearsal, predicted: Prediction) -> dict[str, Any]:
    stages: list[dict[str, Any]] = [
        {
            "stage": one.stage,
            "memory": asdict(one.memory),
            "traffic": [kind.model_dump(mode="json") for kind in one.traffic],
        }
        for one in predicted.stages
    ]
    return {"counted": rehearsal.model_dump(mode="json"), "predicted": {"flops": predicted.flops, "stages": stages}}
