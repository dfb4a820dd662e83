"""The adaptive search of layouts: each next plan is the one that the trials so far let expect most of.

The planner's best is asked first. From then on a surrogate learns how far measured steps are from predicted ones, which
moves the expectation of every other plan, and the plan with the largest expected gain over the best comes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, inf, log, log1p
from typing import NamedTuple

import numpy as np

from conf.types.sweep_spec import Objective
from conf.units import LEAST_GAIN_SHOWN, count_of, gain_of
from costs.setting import Floats, Integers, Plans
from costs.terms import STEP_TERMS
from sweeps.memory_odds import LIKELY, NONE_LIKELY, in_words
from sweeps.practice import after_runs
from sweeps.reading import TrialReading
from sweeps.search.layouts.candidates import Candidates
from sweeps.search.layouts.memory_fit import MemoryFit, expected_improvement
from sweeps.search.layouts.observed import NOISE, Observed, Observer
from sweeps.search.layouts.priced import Priced, join_plans, seconds_to_cost
from sweeps.search.layouts.surrogate import PARTS, Seen, Surrogate
from sweeps.search.searcher import Answer, Proposal, Pruning, Search, num_taken
from train_core.trial.measurement import LIVE, Outcome

FEWEST_KEPT = 1500  # candidates that are looked at however many measurements there are
MOST_WORK = 2e7  # measurements squared times candidates
MOST_MEASUREMENTS = 128  # that the surrogate is fitted on: those with the best rates
NUM_DRAWN_TOGETHER = 500  # the candidates of largest gain, of which the gain of all is estimated
NUM_DRAWS = 512
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_size", "micro_batch_size")
KNOBS_OF_KIND = ("schedule", "recompute", "zero_stage", "sequence_parallel")


class Crowded(NamedTuple):
    """A candidate that is left out as it may not fit: what it is expected to cost, as a logarithm, and its odds."""

    row: int
    mean: float
    fits: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """The candidates that are worth a look, in columns.

    Attributes:
        mean: of the logarithm of what they cost by the objective.
        runs: probability that they run, given the plans that failed.
        gain: by which share of the best each is expected to better it if it fits, times the probability that it runs;
            never negative.
        best: logarithm of the cost of the best so far, in-flight trials included; infinite where there is none.
        chance: probability that one of them betters the best of those tried by the least gain or more.
        crowded: the open candidate of lowest expected cost that may fit and is not likely enough to; None without one.
    """

    rows: Integers
    mean: Floats
    spread: Floats
    fits: Floats
    runs: Floats
    gain: Floats
    best: float
    chance: float
    crowded: Crowded | None

    @property
    def worth(self) -> Floats:
        """The gain that is expected of one job: one that runs out of memory gains nothing, and costs no more."""
        return self.fits * self.gain


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured steps, and what turns the seconds of each into its cost.

    Attributes:
        seen: the measurements, n of them.
        to_cost: what to add to the logarithm of the seconds of each to have that of its cost, (n,).
    """

    seen: Seen
    to_cost: Floats

    def __len__(self) -> int:
        return len(self.to_cost)

    def best_ones(self) -> Measured:
        chosen = np.argsort(self.seen.log_seconds + self.to_cost, kind="stable")[:MOST_MEASUREMENTS]
        return Measured(self.seen.rows(chosen), self.to_cost[chosen])

    def with_liars(self, plans: Priced, to_cost: Floats) -> Measured:
        """These and further plans, as if each had taken as long as is expected of it."""
        expected, _ = Surrogate.fit(self.seen).belief(plans)
        seen = Seen(
            join_plans([self.seen.priced, plans]),
            np.concatenate([self.seen.log_seconds, expected]),
            np.concatenate([self.seen.noise, np.full(len(plans), NOISE)]),
            np.concatenate([self.seen.log_parts, np.full((len(plans), len(PARTS)), np.nan)]),
        )
        return Measured(seen, np.concatenate([self.to_cost, to_cost]))


def outlook(
    candidates: Priced,
    to_cost: Floats,
    open_rows: Integers,
    measured: Measured,
    memory: MemoryFit,
    failed: Plans,
    min_gain: float,
) -> Outlook:
    """Return what to expect of the candidates that are still open, without those that were tried.

    They are LIKELY to fit; where none is, at least half as likely as the likeliest. The nearer a candidate is to a
    plan that crashed or took too long, the less is expected of it.
    """
    surrogate, best = Surrogate.fit(measured.seen), inf
    if len(measured):
        best = float((surrogate.belief(measured.seen.priced)[0] + measured.to_cost).min())
    all_fit = memory.probability(candidates.plans, candidates.peak_bytes, candidates.memory_bytes)
    likeliest, open_fit = all_fit.max(), all_fit[open_rows]
    asked = LIKELY if likeliest >= LIKELY else likeliest / 2
    rows = _most_promising(surrogate, candidates, to_cost, open_rows[open_fit >= asked])
    chosen, fits = candidates.rows(rows), all_fit[rows]
    log_seconds, spread = surrogate.belief(chosen)
    mean = log_seconds + to_cost[rows]
    gain = expected_improvement(best, mean, spread) if len(measured) else np.zeros(len(rows))
    runs = 1.0 - near_failures(chosen.plans, failed)
    unlikely = open_rows[(open_fit < asked) & (open_fit >= likeliest / 2)]
    crowded = _crowded(surrogate, candidates, to_cost, unlikely, all_fit)
    # The joint covariance grows with the square of the plans, so that only the best few are drawn together.
    promising = np.argsort(-(fits * runs * gain), kind="stable")[:NUM_DRAWN_TOGETHER]
    together = join_plans([measured.seen.priced, chosen.rows(promising)])
    all_to_cost = np.concatenate([measured.to_cost, to_cost[rows[promising]]])
    chance = _chance(surrogate, together, all_to_cost, (fits * runs)[promising], min_gain) if len(measured) else 1.0
    return Outlook(rows, mean, spread, fits, runs, gain * runs, best, chance, crowded)


def _crowded(surrogate: Surrogate, candidates: Priced, to_cost: Floats, rows: Integers, fits: Floats) -> Crowded | None:
    if not len(rows):
        return None
    row = int(rows[np.argmin(surrogate.scaled_prediction(candidates.rows(rows)) + to_cost[rows])])
    mean = surrogate.belief(candidates.rows(np.array([row])))[0] + to_cost[row]
    return Crowded(row, float(mean[0]), float(fits[row]))


def _chance(surrogate: Surrogate, plans: Priced, to_cost: Floats, ends_well: Floats, min_gain: float) -> float:
    """The probability that one of the last plans betters the best of the first ones, which were tried, by `min_gain`.

    Args:
        ends_well: probability that each of the last plans fits and runs, (n,).
    """
    if not len(ends_well):
        return 0.0
    mean, covariance = surrogate.joint(plans)
    # The same draws each time, so that the same trials always get the same answer.
    rng = np.random.default_rng(0)
    # Plans that are all but equal make the covariance singular but for rounding, which a little on the diagonal
    # outweighs.
    root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(plans)))
    costs = (mean + to_cost)[:, None] + root @ rng.normal(size=(len(plans), NUM_DRAWS))
    best, others = costs[: -len(ends_well)].min(axis=0), costs[-len(ends_well) :]
    # In each draw a plan ends well or not by its probability; one that does not improves nothing.
    others[rng.uniform(size=others.shape) > ends_well[:, None]] = inf
    return float(np.mean(best - others.min(axis=0) >= log1p(min_gain)))


def _most_promising(surrogate: Surrogate, candidates: Priced, to_cost: Floats, open_rows: Integers) -> Integers:
    """Select the open rows of lowest expected cost, as many as can be looked at closely."""
    # The variance of a candidate takes a product with a square matrix of all measurements.
    kept = max(FEWEST_KEPT, int(MOST_WORK / max(1, len(surrogate.weights)) ** 2))
    if len(open_rows) <= kept:
        return open_rows
    expected = (surrogate.scaled_prediction(candidates) + to_cost)[open_rows]
    chosen: Integers = open_rows[np.argpartition(expected, kept)[:kept]]
    return np.sort(chosen)


def near_failures(plans: Plans, failed: Plans) -> Floats:
    """Return how near each plan is to a failed one: 1 for the same, less with every doubling and other kind, (n,)."""
    nearest = np.full(len(plans), inf)
    for row in range(len(failed)):
        one = failed.rows(slice(row, row + 1))
        distance = np.zeros(len(plans))
        for name in SIZES:
            distance += (np.log2(getattr(plans, name)) - np.log2(getattr(one, name))) ** 2
        for name in KNOBS_OF_KIND:
            # Another kind counts as much as a doubling of a size.
            distance += getattr(plans, name) != getattr(one, name)
        nearest = np.minimum(nearest, distance)
    return np.exp(-nearest / 2)


UNLIKELY = 0.05  # the chance of more gain at which the search ends
RECORDED_ENDS, WRONG_ENDS = 55, 2  # of `python -m benchmarks foreign`
BETTER: Mapping[Objective, str] = {"dollars": "cheaper", "energy": "less energy"}
LIKELY_TO_RUN = 0.5  # the probability that is asked of a plan while nothing was measured

TERMS_IN_WORDS = {
    "compute_seconds": "computation costs",
    "tensor_seconds": "tensor-parallel collectives cost",
    "pipeline_seconds": "transfers between stages cost",
    "bubble_seconds": "the pipeline's bubble costs",
    "data_seconds": "data-parallel collectives cost",
    "optimizer_seconds": "the optimizer costs",
}
SURPRISE = (
    "plans are off from what their terms explain by more than was expected, each in its own way: the search trusts the"
    " prediction less, and tries more of them"
)
FEWEST_TRIALS = 2
SURE_DIFFERENCE = 2.0  # standard deviations from the prediction at which a difference is told
NOTABLE_DIFFERENCE = 0.05  # logarithm of the smallest factor that is told


@dataclass
class Bayes(Search):
    """The search that goes on with the plan of largest expected gain.

    Attributes:
        min_gain: the search ends once it is UNLIKELY that another plan betters the best by this share or more; 0 never
            ends it so.
        max_trials: the most trials of the sweep, the baseline among them.
    """

    candidates: Candidates
    objective: Objective
    min_gain: float
    max_trials: int
    _refused: set[int] = field(default_factory=set)

    def ask(self, trials: Sequence[TrialReading], count: int) -> Answer:
        observed = self._observer.observe(trials)
        left = self.max_trials - num_taken(trials)
        if left <= 0:
            ending = f"sweep.max_trials = {count_of(self.max_trials, 'trial', 'was', 'were')} asked for"
            return Answer(finished="" if _any_in_flight(trials) else ending)
        proposals, ending = self._choose(observed, min(count, left))
        # While anything runs, its result may still change what is expected of the others.
        waits = proposals or _any_in_flight(trials)
        return Answer(tuple(proposals), "" if waits else ending)

    def prune(self, trials: Sequence[TrialReading]) -> list[Pruning]:
        observed = self._observer.observe(trials)
        return clearly_slower(observed, seconds_to_cost(self.objective, observed.priced))

    def lessons(self, trials: Sequence[TrialReading]) -> list[str]:
        return lessons(self._observer.observe(trials))

    def _choose(self, observed: Observed, count: int) -> tuple[list[Proposal], str]:
        """Up to `count` proposals, and why there are no more where the search has an end."""
        rows: list[int] = []
        proposals: list[Proposal] = []
        while len(rows) < count:
            ahead = self._outlook(observed, rows)
            is_first = not rows and all(reading.trial.is_baseline for reading in observed.readings)
            knows_nothing = is_first or ahead.best == inf
            place = self._best_place(ahead, self._as_predicted(ahead) if knows_nothing else self._worth_asking(ahead))
            if place is None:
                return proposals, self._ending(ahead)
            rows.append(int(ahead.rows[place]))
            gain = None if knows_nothing else float(ahead.gain[place])
            because = self._because(ahead, place, gain, len(observed.has_rate))
            if knows_nothing and not proposals:
                because += self._left_out(ahead, float(ahead.mean[place]))
            proposals.append(Proposal(self.candidates.point(rows[-1]), because, gain))
        return proposals, ""

    def _outlook(self, observed: Observed, proposed: Sequence[int]) -> Outlook:
        priced = self.candidates.prices
        tried = [*(row for row in observed.rows if row >= 0), *proposed, *self._refused]
        is_open = np.ones(len(priced), dtype=bool)
        is_open[tried] = False
        seen = observed.measured_rates()
        measured = Measured(seen, seconds_to_cost(self.objective, seen.priced)).best_ones()
        liars = join_plans([observed.plans_in_flight, priced.rows(np.array(proposed, dtype=int))])
        if len(liars):
            measured = measured.with_liars(liars, seconds_to_cost(self.objective, liars))
        memory = MemoryFit.fit(observed.memory(), self.candidates.trainer)
        return outlook(
            priced, self._to_cost, np.flatnonzero(is_open), measured, memory, observed.failed_plans, self.min_gain
        )

    def _as_predicted(self, ahead: Outlook) -> Iterator[int]:
        """Places in the outlook: plans that surely run come first, and among them the lowest predicted cost."""
        predicted = (np.log(self.candidates.prices.step_seconds) + self._to_cost)[ahead.rows]
        order: Integers = np.lexsort((predicted, ahead.runs < LIKELY_TO_RUN))
        yield from order.tolist()

    def _worth_asking(self, ahead: Outlook) -> Iterator[int]:
        """Places in the outlook, the best first, of plans that are worth a job; none where more gain is unlikely."""
        if not self._expects_little(ahead):
            order = np.argsort(-ahead.worth, kind="stable")
            yield from order[ahead.worth[order] > 0].tolist()

    def _expects_little(self, ahead: Outlook) -> bool:
        return self.min_gain > 0 and ahead.chance < UNLIKELY

    def _best_place(self, ahead: Outlook, places: Iterator[int]) -> int | None:
        """The first place whose plan goes with what else is configured."""
        for place in places:
            row = int(ahead.rows[place])
            if self.candidates.experiment(row) is not None:
                return place
            self._refused.add(row)
        return None

    def _because(self, ahead: Outlook, place: int, gain: float | None, num_runs: int) -> str:
        seconds = exp(ahead.mean[place] - self._to_cost[ahead.rows[place]])
        if gain is None:
            why = f"predicted the best of {count_of(len(self.candidates.prices), 'plan')}"
        else:
            share = f"{gain:.1%}" if gain >= LEAST_GAIN_SHOWN else "less than 0.1%"
            why = f"expected to better the best by {share}"
        unlikely = "" if ahead.fits[place] >= LIKELY else f"; {NONE_LIKELY}"
        return (
            f"{why}; {after_runs(num_runs)}: a step of {seconds:.3g} s ± {ahead.spread[place]:.0%},"
            f" {in_words(ahead.fits[place])}{unlikely}"
        )

    def _left_out(self, ahead: Outlook, best: float) -> str:
        """The words on a plan that is expected to cost less than the best and may not fit; empty if there is none."""
        out = ahead.crowded
        following = None if out is None else self.candidates.experiment(out.row)
        if out is None or following is None or best == inf:
            return ""
        faster = gain_of(1 - exp(out.mean - best), BETTER.get(self.objective, "faster"))
        return f"; left out: {following.label}, {faster}, {in_words(out.fits)}" if faster else ""

    def _ending(self, ahead: Outlook) -> str:
        """Return why nothing more is asked, and what would have been."""
        left_out = self._left_out(ahead, ahead.best)
        if not len(ahead.rows):
            if ahead.crowded is not None:
                return f"all plans that are {LIKELY:.0%} likely to fit were tried{left_out}"
            number = len(self.candidates.prices)
            return "the only plan was tried" if number == 1 else f"all {count_of(number, 'plan')} were tried"
        following = self.candidates.experiment(int(ahead.rows[int(np.argmax(ahead.worth))]))
        label = "another plan" if following is None else following.label
        if self._expects_little(ahead):
            reason = (
                f"that another plan betters the best by search.min_gain = {self.min_gain:g} or more is"
                f" {ahead.chance:.0%} likely by the search's own account, and of {RECORDED_ENDS} such ends on made-up"
                f" machines {WRONG_ENDS} were wrong"
            )
        else:
            reason = "no other plan is expected to better the best"
        return f"{reason}; next would come {label}{left_out}"

    @cached_property
    def _observer(self) -> Observer:
        return Observer(self.candidates)

    @cached_property
    def _to_cost(self) -> Floats:
        return seconds_to_cost(self.objective, self.candidates.prices)


def _any_in_flight(trials: Sequence[TrialReading]) -> bool:
    return any(reading.outcome in LIVE for reading in trials)


FEWEST_STEPS = 2  # timed steps before a trial is judged
CLEARLY = 0.10  # several times what measurements of one plan differ by


def clearly_slower(observed: Observed, to_cost: Floats) -> list[Pruning]:
    """Running trials of which even the fastest timed step costs more than the best by that share.

    Args:
        to_cost: what to add to the logarithm of a step's seconds to have that of its cost, of each trial.
    """
    costs = np.log(observed.seconds) + to_cost
    ended = [number for number, one in enumerate(observed.readings) if one.outcome is Outcome.COMPLETED]
    if not ended:
        return []
    best = min(ended, key=lambda number: float(costs[number]))
    found = [_judge(observed, number, float(costs[best] - to_cost[number])) for number in observed.running]
    return [pruning for pruning in found if pruning is not None]


def _judge(observed: Observed, number: int, best_log_seconds: float) -> Pruning | None:
    """The trial's pruning, if its steps are clearly slower than those with which it would be as good as the best."""
    reading = observed.readings[number]
    steps = reading.timed_seconds
    # Everything else is stated against the baseline, and a trial at its last step saves nothing.
    if reading.trial.is_baseline or len(steps) < FEWEST_STEPS or reading.steps[-1].step >= reading.steps[-1].num_steps:
        return None
    # The fastest step is taken, because whatever disturbs a step can only make it longer.
    behind = log(min(steps)) - best_log_seconds
    if behind <= log1p(CLEARLY):
        return None
    because = f"its {len(steps)} timed steps are {exp(behind) - 1:.0%} slower than the best or more"
    return Pruning(reading.trial.trial_id, because)


def lessons(observed: Observed) -> list[str]:
    """A sentence for the whole step, for each term of which something is sure, and for memory."""
    numbers = observed.has_rate
    if len(numbers) < FEWEST_TRIALS:
        return []
    surrogate = Surrogate.fit(observed.measured_rates())
    surprise = [SURPRISE] if surrogate.is_surprised else []
    return [_of_step(observed), *_of_terms(surrogate, len(numbers)), *surprise, *_of_memory(observed)]


def _of_step(observed: Observed) -> str:
    seen = observed.measured_rates()
    ratios = np.exp(seen.log_seconds) / seen.priced.step_seconds
    return (
        f"measured steps take {np.median(ratios):.2f} x the prediction ({count_of(len(ratios), 'trial')},"
        f" {ratios.min():.2f} to {ratios.max():.2f})"
    )


def _of_terms(surrogate: Surrogate, num_trials: int) -> Iterator[str]:
    mean, spread = surrogate.terms()
    for number, name in enumerate(STEP_TERMS):
        if name in TERMS_IN_WORDS and abs(mean[number]) > max(NOTABLE_DIFFERENCE, SURE_DIFFERENCE * spread[number]):
            low, high = (exp(mean[number] + side * spread[number]) for side in (-1, 1))
            yield (
                f"{TERMS_IN_WORDS[name]} {exp(mean[number]):.2f} x the prediction"
                f" (between {low:.2f} and {high:.2f}, from {count_of(num_trials, 'trial')})"
            )


def _of_memory(observed: Observed) -> Iterator[str]:
    seen = observed.memory()
    if not len(seen.ratios):
        return
    mean, _ = MemoryFit.fit(seen, observed.readings[0].planned.trainer.costs_of).ratio(seen.plans)
    ratio = exp(float(np.median(mean)))
    yield f"plans need {ratio:.2f} x the predicted memory ({count_of(len(seen.ratios), 'trial')})"
