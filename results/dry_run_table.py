"""A dry run's numbers beside the cost model's, for a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Table

from results.units import TERA, count, error_percent, gib, significant
from train_core.costs import Estimate, StageMemory
from train_core.dry_run.record import DryRun, StageBytes, StageStep

HEADINGS = {
    "weights_bytes": "weights",
    "gradients_bytes": "grads",
    "optimizer_bytes": "optim",
    "activations_bytes": "activ",
    "working_bytes": "work",
    "logits_bytes": "logits",
    "communication_bytes": "comm",
}
GIGA = 1e9


def memory_table(found: DryRun, predicted: Estimate) -> Table:
    """Every stage at its fullest moment, GiB by what is held."""
    table = Table(
        title="Memory of one rank of every stage at its fullest moment, GiB, counted",
        caption="What tensors take; without the framework's share and gaps. model: predicted by the cost model.",
        box=box.SIMPLE,
        padding=0,
    )
    for heading in ("stage", *HEADINGS.values(), "total", "model", "off %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage, memory in zip(found.stages, predicted.stages, strict=True):
        held = stage.memory.total_bytes
        table.add_row(
            str(stage.stage),
            *(gib(getattr(stage.memory, name)) for name in HEADINGS),
            gib(held),
            gib(memory.allocated_bytes),
            error_percent(memory.allocated_bytes, held),
        )
    return table


def work_table(found: DryRun) -> Table:
    """Products and collectives of a step; stages that do the same share their rows."""
    table = Table(
        title="One rank's step, counted",
        caption="GB: 10^9 bytes of the whole tensors that are summed, gathered, scattered or sent.",
        box=box.SIMPLE,
    )
    for heading in ("stages", "TFLOP", "group", "collective", "number", "GB"):
        table.add_column(heading, justify="left" if heading in ("group", "collective") else "right")
    for stages, alike in _alike(found):
        named = [stages, significant(alike.flops / TERA, 4)]
        for one in alike.traffic:
            size = significant(one.num_bytes / GIGA)
            table.add_row(*named, one.group, one.kind.replace("_", "-"), count(one.number), size)
            named = ["", ""]
    return table


def _alike(found: DryRun) -> Iterator[tuple[str, StageStep]]:
    """Runs of stages that do the same."""
    for _, run in groupby(found.stages, key=lambda stage: (stage.flops, stage.traffic)):
        stages = list(run)
        first, last = stages[0].stage, stages[-1].stage
        yield (str(first) if first == last else f"{first}-{last}"), stages[0]


def comparison(found: DryRun, predicted: Estimate) -> str:
    """Both as JSON: what was counted, and what the cost model says of the same."""
    stages = [
        {**stage.model_dump(mode="json"), "predicted_memory": _named(memory)}
        for stage, memory in zip(found.stages, predicted.stages, strict=True)
    ]
    content = {**found.model_dump(mode="json"), "predicted_flops": predicted.hardware_flops, "stages": stages}
    return json.dumps(content, indent=2)


def _named(memory: StageMemory) -> dict[str, Any]:
    return {name: getattr(memory, name) for name in StageBytes.model_fields}
