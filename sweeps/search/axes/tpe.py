"""Choices by Optuna's tree-structured Parzen estimator, from a study that is built anew of what the trials say.

Nothing is kept between two questions: finished points are told with their values, those in flight as running, which
Optuna takes for bad ones until they end (constant liar), points that were ended early with the worst value, and points
out of memory as complete but not feasible.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conf.types.axes import SweepAxis
from sweeps.points.axes import AxisSpace, Dimension
from sweeps.search.axes.draws import BLOCK, choice_name, choices_of, ends, is_ordered
from sweeps.search.axes.seen_points import SeenPoint
from train_core.measurement import Outcome

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

MEMORY = "memory"
"""The name of the constraint that out of memory breaks."""


@dataclass(frozen=True, slots=True)
class TpeChooser:
    """Lets a trial of Optuna's decide."""

    trial: Trial

    def row(self, name: str, count: int, *, ordered: bool) -> int:
        if ordered:
            return self.trial.suggest_int(name, 0, count - 1)
        return int(self.trial.suggest_categorical(name, range(count)))

    def number(self, name: str, axis: SweepAxis) -> float:
        low, high, step = ends(axis)
        if axis.is_whole:
            return self.trial.suggest_int(name, int(low), int(high), step=int(step or 1), log=axis.log)
        return self.trial.suggest_float(name, low, high, step=step, log=axis.log)


class TpeDraws:
    """Draws from Optuna's view of the sweep, in which all objectives are costs."""

    _last: Trial

    def __init__(self, spaces: Sequence[AxisSpace], seen: Sequence[SeenPoint], num_objectives: int, seed: int) -> None:
        with warnings.catch_warnings(action="ignore"):  # that the sampler's groups are experimental
            self._study = _study(num_objectives, seed)
            self._study.add_trials(list(_known_trials(spaces, seen)))

    def chooser(self) -> TpeChooser:
        with warnings.catch_warnings(action="ignore"):
            self._last = self._study.ask()
        return TpeChooser(self._last)

    def refuse(self) -> None:
        from optuna.trial import TrialState

        self._study.tell(self._last, state=TrialState.FAIL)


def _study(num_objectives: int, seed: int) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Conditional axes make groups of trials with the same choices, which are each modelled together.
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
    return optuna.create_study(sampler=sampler, directions=["minimize"] * num_objectives)


def _known_trials(spaces: Sequence[AxisSpace], seen: Sequence[SeenPoint]) -> Iterator[FrozenTrial]:
    from optuna.trial import TrialState, create_trial

    known = distributions(spaces)
    worst = _worst([each.costs for each in seen if each.costs is not None])
    for each in seen:
        choices = choices_of(spaces, each.point)
        if choices is None:
            continue
        of_params = {name: known[name] for name in choices}
        params = {name: of.to_external_repr(of.to_internal_repr(choices[name])) for name, of in of_params.items()}
        if each.costs is not None:
            # The cost of a diverged run is infinite; the worst finite cost stands for it.
            values, over = [min(cost, bound) for cost, bound in zip(each.costs, worst, strict=True)], -1.0
        elif each.is_in_flight:
            yield create_trial(state=TrialState.RUNNING, params=params, distributions=of_params)
            continue
        elif each.ended_as(Outcome.OUT_OF_MEMORY) and worst:
            # A constraint above 0 is violated: the sampler then prefers points that keep it, whatever their cost.
            values, over = worst, 1.0
        elif each.ended_as(Outcome.PRUNED) and worst:
            values, over = worst, -1.0  # of a training that was worse than others until then
        else:
            continue
        yield create_trial(values=values, params=params, distributions=of_params, constraints={MEMORY: over})


def _worst(costs: Sequence[tuple[float, ...]]) -> list[float]:
    """The largest finite cost of each objective; empty before anything was measured."""
    finite = [[value for value in each if value != float("inf")] for each in zip(*costs, strict=True)]
    return [max(each) if each else 0.0 for each in finite]


def distributions(spaces: Sequence[AxisSpace]) -> dict[str, BaseDistribution]:
    """Optuna's name for what each choice is made from."""
    from optuna.distributions import CategoricalDistribution

    every = {
        choice_name(dimension, block): _distribution(dimension)
        for block, space in enumerate(spaces)
        for dimension in space.dimensions
    }
    return {**every, BLOCK: CategoricalDistribution(range(len(spaces)))}


def _distribution(dimension: Dimension) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    axis = dimension.axis
    if axis is None:
        count = len(dimension.rows or ())
        return IntDistribution(0, count - 1) if is_ordered(dimension) else CategoricalDistribution(range(count))
    low, high, step = ends(axis)
    if axis.is_whole:
        return IntDistribution(int(low), int(high), log=axis.log, step=int(step or 1))
    return FloatDistribution(low, high, log=axis.log, step=step)
