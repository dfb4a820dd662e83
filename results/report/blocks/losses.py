"""The training losses of the measured trials: a line for trials of equal data, and by how much they differ."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from conf.grouped import grouped
from conf.plan.experiment import Experiment
from results.report.blocks.charts import Spec, category, quantity
from results.report.section import Block, Heading, Paragraph, Plot
from results.units import significant
from sweeps.reading import TrialReading

SMALLEST_PERCENT = 0.001
Losses = dict[int, list[float]]
"""The finite losses of several trials at each step."""


def loss_blocks(best_first: Sequence[TrialReading]) -> tuple[Block, ...]:
    """Trials that train the same model on the same batches must agree, whatever their layout."""
    groups = _group_by_data(best_first)
    if not groups:
        return ()
    alike = {name: members for name, members in groups.items() if len(members) > 1}
    sentences = [_difference(name, len(members), _losses(members)) for name, members in alike.items()]
    if not alike:
        sentences.append("No two trials differ in their layout alone, so that there are no losses to compare.")
    diverged = [result.label for result in best_first if _has_diverged(result)]
    if diverged:
        sentences.append(f"A loss that is not a finite number: {', '.join(diverged)}.")
    caption = (
        "Training loss, measured: the mean of the trials that train on the same batches, between the lowest and the"
        " highest of them."
    )
    return (
        Heading("Loss"),
        Paragraph(" ".join(sentences), is_caution=bool(diverged)),
        Plot("loss", caption, _plot(groups)),
    )


def _group_by_data(best_first: Sequence[TrialReading]) -> dict[str, list[TrialReading]]:
    """Trials by what decides about the loss, so that those of a group differ in their layout alone."""
    groups = grouped(
        (each for each in best_first if each.performance and each.experiment), lambda each: _data(each.planned)
    )
    names = [f"global batch {batch}" for batch, *_ in groups]
    labels = Counter(members[0].label for members in groups.values() if len(members) == 1)
    distinct: dict[str, list[TrialReading]] = {}
    for number, (batch, members) in enumerate(zip(names, groups.values(), strict=True), start=1):
        label = members[0].label
        if names.count(batch) == 1:
            distinct[batch] = members
        elif len(members) == 1 and labels[label] == 1:  # which says what the trial has of its own, as a learning rate
            distinct[label] = members
        else:
            distinct[f"{batch} ({number})"] = members
    return distinct


def _data(experiment: Experiment) -> tuple[Any, ...]:
    return (
        experiment.batch.global_batch_size,
        experiment.model.model_dump_json(exclude={"name"}),
        experiment.precision.model_dump_json(),
        experiment.data.model_dump_json(exclude={"cache_dir"}),
        experiment.training.model_dump_json(),
    )


def _losses(members: Sequence[TrialReading]) -> Losses:
    losses: Losses = defaultdict(list)
    for result in members:
        if result.performance:
            for step, loss in zip(result.performance.recorded_steps, result.performance.losses, strict=False):
                if math.isfinite(loss):
                    losses[step].append(loss)
    return losses


def _difference(name: str, num_trials: int, losses: Losses) -> str:
    shares = [(max(at) - min(at)) / abs(max(at)) for at in losses.values() if max(at)]
    largest = max(shares, default=0.0)
    by = f"{SMALLEST_PERCENT} %" if largest < SMALLEST_PERCENT / 100 else f"{significant(100 * largest, 2)} %"
    return f"The {num_trials} trials with {name} trained on the same batches: their losses differ by at most {by}."


def _has_diverged(result: TrialReading) -> bool:
    return result.performance is not None and not all(map(math.isfinite, result.performance.losses))


def _plot(groups: dict[str, list[TrialReading]]) -> Spec:
    values = [
        {"batch": name, "step": step, "loss": sum(at) / len(at), "lowest": min(at), "highest": max(at)}
        for name, members in groups.items()
        for step, at in sorted(_losses(members).items())
    ]
    colour = category("batch")
    if len(groups) == 1:
        colour["legend"] = None
    lowest = quantity("lowest", "training loss", scale={"zero": False})
    return {
        "data": {"values": values},
        "height": 260,
        "encoding": {"x": quantity("step", "step", axis={"tickMinStep": 1}), "color": colour},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.25}, "encoding": {"y": lowest, "y2": {"field": "highest"}}},
            {
                "mark": {"type": "line", "point": True},
                "encoding": {"y": quantity("loss", "training loss", scale={"zero": False})},
            },
        ],
    }
