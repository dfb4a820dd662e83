"""The answer of a sweep that seeks a loss, a time, money or energy, or several of them, in the words of its axes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from conf.grouped import grouped
from conf.nearest import listed
from conf.overrides import Override, command_line
from conf.types.sweep_spec import Objective, figure_name, is_of_time
from conf.units import TERA, count_of
from results.analysis.findings.axis_ends import end_sentences
from results.render.units import ABSENT, significant
from sweeps.points.objectives import LAST_PART, is_better_when_larger
from sweeps.ranking.points import MeasuredPoint, sought_points
from sweeps.reading import TrialReading
from sweeps.search.axes.seen_points import SEED
from sweeps.trial import SweepRecord
from train_core.trial.measurement import LIVE

WORDS: dict[str, str] = {
    "throughput": "model TFLOPS per device",
    "loss": "loss",
    "step_time": "seconds of a step",
    "dollars": "dollars per trillion tokens",
    "energy": "joules per token",
}
MOST_NAMED = 5
LOSS_PATTERN = "trainer.log.patterns"
NO_LOSS = (
    f"No loss that is a number was printed: nothing matches {LOSS_PATTERN}, or every training diverged from its first"
    " step on."
)
NUM_RUNS = 3
SAME = "All runs of"
FEWEST_TO_RISE, CLEARLY = 5, 3.0
"""A training loss rises at the end if the mean of its last tenth, of so many steps at least, is above that of an
earlier tenth by so many standard errors. Assumed."""
HUGE = 1e10
"""Only a loss that diverged is as large; tables write it with an exponent, for want of room."""


def words_of(objective: Objective) -> str:
    """The objective as people call it; a later stage's figure bears the name that its program gave it."""
    return WORDS.get(objective) or figure_name(objective) or objective


def value_text(objective: Objective, value: float) -> str:
    """The value in the unit that tables show."""
    shown = value / TERA if objective == "throughput" else value
    return f"{shown:.3g}" if abs(shown) >= HUGE else significant(shown, 4)


def interval_text(objective: Objective, interval: tuple[float, float] | None) -> str:
    """Return its ends as tables show values; absent where nothing says how the values spread."""
    return " to ".join(value_text(objective, end) for end in interval) if interval else ABSENT


def sought_sentences(record: SweepRecord, results: Sequence[TrialReading], where: str) -> tuple[str, str, str]:
    """The headline, which others may be as good, and how sure that is; empty where nothing is measured.

    Further runs are advised once all trials have ended: those that have not may be just these.
    """
    measured = sought_points(record, results)
    points = [point for point in measured if not point.aside]
    if not points:
        return "", "", ""
    is_over = not any(each.outcome in LIVE for each in results)
    headline, others, sureness = _placed_sentences(record, points, where if is_over else "")
    return (
        headline,
        " ".join(filter(None, (others, aside_sentence({each.name: each.aside for each in measured})))),
        sureness,
    )


def aside_sentence(reasons: Mapping[str, str]) -> str:
    """Which points have no place among the others, and why; empty if all have."""
    alike = grouped((name for name, why in reasons.items() if why), lambda name: reasons[name])
    aside = "; ".join(f"{listed(names, MOST_NAMED)} ({why})" for why, names in alike.items())
    return f"Without a place among the others: {aside}." if aside else ""


def _placed_sentences(record: SweepRecord, points: Sequence[MeasuredPoint], where: str) -> tuple[str, str, str]:
    """The same of the points that have a place, without a word on the others."""
    if all(_told_no_loss(point) for point in points) and "loss" in record.objective:
        return NO_LOSS, "", ""
    if all(point.diverged for point in points):
        return "The only point diverged." if len(points) == 1 else f"All {len(points)} points diverged.", "", ""
    if len(record.objective) > 1:
        return _front(record, points), "", _sureness(record, points, where)
    objective, (best, *others) = record.objective[0], points
    rivals = [point for point in others if point.may_be_best and point.may_equal(best)]
    superlative = f"the {'highest' if is_better_when_larger(objective) else 'lowest'} {words_of(objective)}"
    interval = f" ({interval_text(objective, best.interval)})" if best.interval else ""
    by_loss = objective == "loss"
    rising = ", whose loss was rising at the end," if by_loss and rises_at_end(best) else ""
    reached = f"{best.name}{rising} reached {superlative}, {value_text(objective, best.values[0])}{interval}"
    sureness, marked = _sureness(record, points, where), _marked_in_words(objective, others)
    beyond = end_sentences(record, points)
    if not rivals:
        return f"{reached}{_others_in_words(objective, others)}{marked}.", beyond, sureness
    names = listed([point.name for point in rivals], MOST_NAMED)
    if any(point.interval for point in (best, *rivals)):
        equals, named = f"{len(rivals)} may be as good", f"May be as good: {names}."
        return f"No clear winner: {reached}, and {equals}{marked}.", f"{named} {beyond}".rstrip(), sureness
    same, named = "1 other" if len(rivals) == 1 else f"{len(rivals)} others", f"Reached the same: {names}."
    return f"No clear winner: {reached}, and so did {same}{marked}.", f"{named} {beyond}".rstrip(), sureness


def _marked_in_words(objective: Objective, others: Sequence[MeasuredPoint]) -> str:
    """What is to be known of single ones among the others, as the end of a sentence: which diverged or were rising."""
    if objective != "loss":
        diverged = [point.name for point in others if point.diverged]
        return f"; {_named_or_counted(diverged)} diverged" if diverged else ""
    untold = sum(_told_no_loss(point) for point in others)
    diverged = [point.name for point in others if point.diverged and not _told_no_loss(point)]
    rising = [point.name for point in others if point.may_be_best and rises_at_end(point)]
    said = f"; {_named_or_counted(diverged)} diverged" if diverged else ""
    said += f"; {_named_or_counted(rising)} {'was' if len(rising) == 1 else 'were'} rising at the end" if rising else ""
    return said + (f"; {untold} printed no loss that is a number and that {LOSS_PATTERN} matches" if untold else "")


def _named_or_counted(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else str(len(names))


def rises_at_end(point: MeasuredPoint) -> bool:
    """True if the losses of all its runs were rising when they ended."""
    return all(map(_rises, point.runs))


def _rises(reading: TrialReading) -> bool:
    """True if the held-out loss rose twice in a row at last; without evaluations if the training loss clearly rose."""
    if reading.planned.has_held_out_loss:
        held = [step.held_out_loss for step in reading.steps if step.held_out_loss is not None]
        return len(held) > 2 and held[-3] < held[-2] < held[-1]
    losses = reading.performance.losses if reading.performance is not None else ()
    size = len(losses) // LAST_PART
    if size < FEWEST_TO_RISE or not all(map(math.isfinite, losses)):
        return False
    tenths = [losses[end - size : end] for end in range(len(losses), size - 1, -size)]
    means = [(fmean(each), stdev(each) / math.sqrt(size)) for each in tenths]
    (last, error), (lowest, its_error) = means[0], min(means[1:])
    return last - lowest > CLEARLY * math.hypot(error, its_error)


def _told_no_loss(point: MeasuredPoint) -> bool:
    """True of another program in whose log no step has a loss, of the kind that is sought, that is a number."""
    if all(each.planned.has_held_out_loss for each in point.runs):
        losses = [step.held_out_loss for each in point.runs for step in each.steps if step.held_out_loss is not None]
    else:
        losses = [loss for each in point.runs if each.performance for loss in each.performance.losses]
    is_other = not any(each.planned.trainer.is_own for each in point.runs)
    return is_other and not point.is_number and all(map(math.isnan, losses))


def _others_in_words(objective: Objective, others: Sequence[MeasuredPoint]) -> str:
    values = sorted(point.values[0] for point in others if not point.diverged)
    if not values:
        return ""
    if len(values) == 1:
        return f", against {value_text(objective, values[0])}"
    low, high = (value_text(objective, value) for value in (values[0], values[-1]))
    return f", against {low if low == high else f'{low} to {high}'} of the {len(values)} others"


def _front(record: SweepRecord, points: Sequence[MeasuredPoint]) -> str:
    best = [point for point in points if point.on_front]
    named = "; ".join(f"{point.name} ({_values(record, point)})" for point in best[:MOST_NAMED])
    more = f" and {len(best) - MOST_NAMED} more" if len(best) > MOST_NAMED else ""
    words = " and ".join(words_of(objective) for objective in record.objective)
    these = "this" if len(best) == 1 else f"these {len(best)}"
    return f"No other of {count_of(len(points), 'point')} beats {these} in {words}: {named}{more}."


def _values(record: SweepRecord, point: MeasuredPoint) -> str:
    both = zip(record.objective, point.values, strict=True)
    return ", ".join(f"{words_of(objective)} {value_text(objective, value)}" for objective, value in both)


def sweep_with(where: str, values: Mapping[str, int]) -> str:
    """The command that goes on with a sweep under other values, in the place of those which its words may give."""
    kept = command_line(word for word in shlex.split(where) if Override.parse(word).key not in values)
    return " ".join(("trisweep sweep", kept, *(f"{key}={value}" for key, value in values.items())))


def _further_seeds(record: SweepRecord) -> dict[str, int]:
    """The values with which a sweep gives its points further seeds, which count towards `sweep.max_trials`."""
    points = [trial for trial in record.trials if not trial.stage and not trial.repeat]
    most = NUM_RUNS * sum(trial.selected or trial.role == "observed" for trial in points)
    return {"search.num_seeds": NUM_RUNS} | ({"sweep.max_trials": most} if most > record.spec.max_trials else {})


def _sureness(record: SweepRecord, points: Sequence[MeasuredPoint], where: str) -> str:
    if points[0].interval is None:
        return _unsureness(record, points, where)
    most = max(len(point.runs) for point in points)
    runs = "1 run" if most == 1 else f"up to {most} runs"
    of_which = "" if is_of_time(record.objective[0]) else " over points of like value"
    return f"The interval is of 95 %, by Student's t with the spread between runs pooled{of_which} ({runs} of a point)."


def _unsureness(record: SweepRecord, points: Sequence[MeasuredPoint], where: str) -> str:
    """Why nobody knows how the best value spreads, and what would tell."""
    seen, nobody_knows = _what_was_seen(points), "so how much is chance is not known"
    if not where:
        return f"{seen} so far, {nobody_knows}."
    by_time, seed = all(map(is_of_time, record.objective)), f"{{{SEED}}}"
    again = f"`{sweep_with(where, {'search.max_rounds': NUM_RUNS} if by_time else _further_seeds(record))}`"
    programs = [point.reading.planned.trainer for point in points]
    if programs[0].is_script and not any(program.is_told(SEED) for program in programs):
        return f"{seen}, {nobody_knows}: give seed=1,2,3 as well, and {{seed}} in the command."
    if not by_time and not any(program.is_told(SEED) for program in programs):
        return f"{seen}, {nobody_knows}. The program is not told {seed}, which {again} varies."
    if seen.startswith(SAME):
        return f"{seen}, {nobody_knows}. Does the program make use of {seed}?"
    return f"{seen}, {nobody_knows}: {again} would tell."


def _what_was_seen(points: Sequence[MeasuredPoint]) -> str:
    best, sound = points[0], [point for point in points if not point.diverged]
    if any(point.interval for point in sound):
        same = f"{SAME} {best.name} came to the same, and no point of like value says more"
        return same if best.num_drawn > 1 else f"{best.name} ran once, as did every point of like value"
    if any(point.num_drawn > 1 for point in sound):
        return f"{SAME} a point came to the same"
    return f"One {'seed' if any(len(point.runs) > 1 for point in sound) else 'run'} of each"
