"""Choices by a sampler of Optuna's, in a study that is built anew of what the trials say.

Nothing is kept between two questions: finished points are told with their values, those in flight as running, which
samplers take for bad ones until they end (constant liar), points that were ended early with the worst value, and points
out of memory as complete but not feasible.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING

from conf.errors import ConfigError
from conf.types.axes import SweepAxis
from conf.types.sweep_spec import Sampler, SearchPlan
from sweeps.points.axes import AxisSpace, Dimension
from sweeps.search.axes.draws import BLOCK, choice_name, choices_of, ends, is_ordered
from sweeps.search.axes.seen_points import SeenPoint
from train_core.trial.measurement import Outcome

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

MEMORY = "memory"
"""The name of the constraint that out of memory breaks."""
MOST_DIMENSIONS = 10
"""A Gaussian process over more axes has too few points to learn which of them matter."""
MOST_POINTS = 200
"""With more, a question to a Gaussian process takes longer than a third of a second."""

MOST_DRAWS, MOST_DRAWS_OF_PROCESS = 24, 6
"""Draws in a row that bring nothing new before others are tried: of most samplers, and of a slow one."""


@dataclass(frozen=True, slots=True)
class SamplerChooser:
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


class SamplerDraws:
    """Draws from Optuna's view of the sweep, in which all objectives are costs.

    A trial whose point is of no use stays in the study as running, so that the next one goes elsewhere.

    Args:
        seeds: of the sweep, and of this question.
    """

    def __init__(
        self,
        spaces: Sequence[AxisSpace],
        seen: Sequence[SeenPoint],
        num_objectives: int,
        sampler: Sampler,
        seeds: tuple[int, int],
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        chosen = _suited_sampler(spaces, len(seen), num_objectives) if sampler == "auto" else sampler
        self.most_draws = MOST_DRAWS_OF_PROCESS if chosen == "GPSampler" else MOST_DRAWS
        with warnings.catch_warnings(action="ignore"):  # that what is used is experimental
            made = _made_sampler(chosen, seeds)
            self._study = optuna.create_study(sampler=made, directions=["minimize"] * num_objectives)
            trials = _known_trials(spaces, seen)
            if chosen in STATELESS:
                self._study.add_trials(list(trials))
            else:
                _replay(self._study, trials)

    def chooser(self) -> SamplerChooser:
        with warnings.catch_warnings(action="ignore"):
            return SamplerChooser(self._study.ask())


def require_usable(plan: SearchPlan) -> None:
    """Raises ConfigError for a sampler that cannot run here, or not for several objectives."""
    if plan.sampler != "CmaEsSampler":
        return
    if find_spec("cmaes") is None:
        raise ConfigError("search.sampler", plan.sampler, "needs the package cmaes", "Run `pip install cmaes`.")
    if len(plan.objective) > 1:
        remedy = "Use one, or search.sampler=TPESampler."
        raise ConfigError("search.sampler", plan.sampler, "seeks a single objective", remedy)


STATELESS = ("GPSampler", "TPESampler", "RandomSampler")
"""Samplers that look at the trials alone; others keep in each trial what they were about when they chose it."""


def _suited_sampler(spaces: Sequence[AxisSpace], num_seen: int, num_objectives: int) -> Sampler:
    """A Gaussian process learns from fewer points, where every point has the same few axes; TPE knows conditions."""
    varied = [each for space in spaces for each in space.dimensions if each.rows is None or len(each.rows) > 1]
    is_plain = len(spaces) == 1 and num_objectives == 1 and not any(each.when for each in varied)
    return "GPSampler" if is_plain and len(varied) <= MOST_DIMENSIONS and num_seen <= MOST_POINTS else "TPESampler"


def _made_sampler(name: Sampler, seeds: tuple[int, int]) -> BaseSampler:
    from optuna import samplers

    of_sweep, of_question = seeds
    if name == "GPSampler":
        return samplers.GPSampler(seed=of_question, n_startup_trials=0)
    if name == "TPESampler":
        # Conditional axes make groups of trials with the same choices, which are each modelled together.
        return samplers.TPESampler(
            seed=of_question, multivariate=True, group=True, constant_liar=True, n_startup_trials=0
        )
    if name in STATELESS:
        return samplers.RandomSampler(seed=of_question)
    made: BaseSampler = getattr(samplers, name)(seed=of_sweep)
    return made


def _replay(study: Study, trials: Iterable[FrozenTrial]) -> None:
    """Let the sampler choose every trial again, put the real one's values in their place, and tell how it ended."""
    for each in trials:
        study.enqueue_trial(each.params)
        trial = study.ask(fixed_distributions=each.distributions)
        if each.state.is_finished():
            study.tell(trial, each.values)


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
            # The cost of a diverged run is infinite.
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
    """The most that a cost counts for, of each objective; empty before anything was measured.

    It lies as far above the median as the best below it, so that trainings which broke down do not make all others
    look alike.
    """
    finite = [[value for value in each if value != float("inf")] for each in zip(*costs, strict=True)]
    return [2 * median(each) - min(each) if each else 0.0 for each in finite]


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
