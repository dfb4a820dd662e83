"""Trials and the stages that follow them: which of them belong together, and what the later ones found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from conf.grouped import grouped
from conf.types.stage_spec import TRAIN, StageSpec, earlier_stages
from sweeps.reading import Reading, TrialReading
from train_core.measurement import Outcome

AnyReading = TypeVar("AnyReading", bound=Reading)


def points_of(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The trials of the sweep's points, which are compared with each other. No later stage is."""
    return [each for each in readings if not each.trial.stage]


def points_of_configuration(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The points of the present configuration that were tried or are to be, whichever command asked for them."""
    return [each for each in points_of(readings) if each.trial.role != "kept" and each.outcome is not None]


def first_runs(readings: Sequence[TrialReading]) -> list[TrialReading]:
    """The first measurement of each of them at each of its seeds, which is all that a search learns from."""
    return [each for each in points_of_configuration(readings) if not each.trial.repeat]


def in_chains(readings: Sequence[AnyReading]) -> list[AnyReading]:
    """The readings, each later stage after the trial that it follows."""
    followers: dict[str, list[AnyReading]] = {}
    known = {each.name for each in readings}
    for each in readings:
        after = each.trial.after if isinstance(each, TrialReading) else ""
        followers.setdefault(after if after in known else "", []).append(each)
    ordered, waiting = list[AnyReading](), followers.pop("", [])[::-1]
    while waiting:
        ordered.append(waiting.pop())
        waiting += followers.pop(ordered[-1].name, [])[::-1]
    return ordered


def chain_of(point: TrialReading, readings: Mapping[str, Sequence[TrialReading]]) -> dict[str, TrialReading]:
    """The trials that followed a trial, by stage.

    Args:
        readings: the later stages by the trial that each comes directly after; see `by_predecessor`.
    """
    found, waiting = dict[str, TrialReading](), [point.name]
    while waiting:
        following = dict[str, TrialReading]()
        for each in readings.get(waiting.pop(), ()):
            if each.trial.role != "kept" or each.trial.stage not in following:
                following[each.trial.stage] = each
        # What followed a stage that was changed since says nothing of the trial that took its place.
        found |= following
        waiting += [each.name for each in following.values()]
    return found


def by_predecessor(readings: Sequence[TrialReading]) -> dict[str, list[TrialReading]]:
    """The later stages by the trial that each comes directly after."""
    return grouped((each for each in readings if each.trial.stage), lambda each: each.trial.after)


def with_figures(readings: Sequence[TrialReading], stages: Mapping[str, StageSpec]) -> list[TrialReading]:
    """The readings, in which each trial knows what later stages measured of it."""
    later = by_predecessor(readings)
    if not stages:
        return list(readings)
    chains = {each.name: chain_of(each, later) for each in points_of(readings)}
    return [
        each
        if each.name not in chains
        else replace(
            each,
            figures=_metrics(chains[each.name]),
            awaits_figures=_is_open({TRAIN: each, **chains[each.name]}, stages),
        )
        for each in readings
    ]


def _is_open(chain: Mapping[str, TrialReading], stages: Mapping[str, StageSpec]) -> bool:
    """True if a stage with figures is still to begin or to end, and nothing that it needs has failed."""
    for name, stage in stages.items():
        needed = [name, *earlier_stages(name, stages)]
        outcomes = [chain[each].outcome if each in chain else None for each in needed]
        if stage.metrics is None or stage.best is not None or outcomes[0] is Outcome.COMPLETED:
            continue
        if not any(outcome and outcome.is_final and outcome is not Outcome.COMPLETED for outcome in outcomes):
            return True
    return False


def chain_metrics(readings: Sequence[TrialReading]) -> dict[str, dict[str, float]]:
    """The measurements of the programs of later stages, as `STAGE.FIGURE`, by the id of the sweep's own trial."""
    later = by_predecessor(readings)
    if not later:
        return {}
    return {each.name: _metrics(chain_of(each, later)) for each in points_of(readings)}


def _metrics(chain: Mapping[str, TrialReading]) -> dict[str, float]:
    return {f"{stage}.{name}": value for stage, each in chain.items() for name, value in each.metrics.items()}
