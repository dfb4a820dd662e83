"""The answer of a sweep that seeks a loss, a time, money or energy, or several of them, in the words of its axes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from conf.grouped import grouped
from conf.nearest import listed
from conf.overrides import Override, command_line
from conf.types.sweep_spec import Objective, figure_of, is_of_time
from conf.units import TERA, count_of
from results.units import ABSENT, significant
from sweeps.points.objectives import is_better_when_larger
from sweeps.reading import TrialReading
from sweeps.repeats.by_objective import SoughtPoint, sought_points
from sweeps.search.axes.seen_points import SEED
from sweeps.trial import SweepRecord
from train_core.measurement import LIVE

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
HUGE = 1e10
"""Only a loss that diverged is as large; tables write it with an exponent, for want of room."""


def words_of(objective: Objective) -> str:
    """The objective as people call it; a later stage's figure bears the name that its program gave it."""
    return WORDS.get(objective) or figure_of(objective) or objective


def value_text(objective: Objective, value: float) -> str:
    """The value in the unit that tables show."""
    shown = value / TERA if objective == "throughput" else value
    return f"{shown:.3g}" if abs(shown) >= HUGE else significant(shown, 4)


def half_width_text(objective: Objective, half: float | None) -> str:
    """Return the half width in two digits, as it is known no better; absent if no point has two runs."""
    if half is None:
        return ABSENT
    return significant(half / TERA if objective == "throughput" else half, 2)


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


def _placed_sentences(record: SweepRecord, points: Sequence[SoughtPoint], where: str) -> tuple[str, str, str]:
    """The same of the points that have a place, without a word on the others."""
    if all(point.told_no_loss for point in points) and "loss" in record.objective:
        return NO_LOSS, "", ""
    if all(point.diverged for point in points):
        return "The only point diverged." if len(points) == 1 else f"All {len(points)} points diverged.", "", ""
    if len(record.objective) > 1:
        return _front(record, points), "", _sureness(record, points, where)
    objective, (best, *others) = record.objective[0], points
    rivals = [point for point in others if point.has_place and point.may_equal(best)]
    superlative = f"the {'highest' if is_better_when_larger(objective) else 'lowest'} {words_of(objective)}"
    half = "" if best.half_width is None else f" ± {half_width_text(objective, best.half_width)}"
    reached = f"{best.name} reached {superlative}, {value_text(objective, best.values[0])}{half}"
    sureness = _sureness(record, points, where)
    if not rivals:
        return f"{reached}{_others_in_words(objective, others)}.", "", sureness
    names = listed([point.name for point in rivals], MOST_NAMED)
    if _has_intervals(points):
        return f"No clear winner: {reached}, and {len(rivals)} may be as good.", f"May be as good: {names}.", sureness
    same = "1 other" if len(rivals) == 1 else f"{len(rivals)} others"
    return f"No clear winner: {reached}, and so did {same}.", f"Reached the same: {names}.", sureness


def _others_in_words(objective: Objective, others: Sequence[SoughtPoint]) -> str:
    values = sorted(point.values[0] for point in others if not point.diverged)
    untold = sum(point.told_no_loss for point in others) if objective == "loss" else 0
    diverged = [point.name for point in others if point.diverged and not (objective == "loss" and point.told_no_loss)]
    lost = f"; {diverged[0] if len(diverged) == 1 else len(diverged)} diverged" if diverged else ""
    lost += f"; {untold} printed no loss that is a number and that {LOSS_PATTERN} matches" if untold else ""
    if not values:
        return lost
    if len(values) == 1:
        return f", against {value_text(objective, values[0])}{lost}"
    low, high = (value_text(objective, value) for value in (values[0], values[-1]))
    return f", against {low if low == high else f'{low} to {high}'} of the {len(values)} others{lost}"


def _front(record: SweepRecord, points: Sequence[SoughtPoint]) -> str:
    best = [point for point in points if point.on_front]
    named = "; ".join(f"{point.name} ({_values(record, point)})" for point in best[:MOST_NAMED])
    more = f" and {len(best) - MOST_NAMED} more" if len(best) > MOST_NAMED else ""
    words = " and ".join(words_of(objective) for objective in record.objective)
    these = "this" if len(best) == 1 else f"these {len(best)}"
    return f"No other of {count_of(len(points), 'point')} beats {these} in {words}: {named}{more}."


def _values(record: SweepRecord, point: SoughtPoint) -> str:
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


def _has_intervals(points: Sequence[SoughtPoint]) -> bool:
    return any(point.half_width is not None for point in points)


def _sureness(record: SweepRecord, points: Sequence[SoughtPoint], where: str) -> str:
    if not _has_intervals(points):
        has_runs = any(len(point.runs) > 1 and not point.diverged for point in points)
        if not where:
            return f"One {'seed' if has_runs else 'run'} of each so far, so that nobody knows what is chance."
        by_time = all(map(is_of_time, record.objective))
        again = f"`{sweep_with(where, {'search.max_rounds': NUM_RUNS} if by_time else _further_seeds(record))}`"
        if by_time or any(point.reading.planned.trainer.is_told(SEED) for point in points):
            of_each = "seed" if has_runs else "run"
            return f"One {of_each} of each, so that nobody knows what is chance: {again} would tell."
        often = "All runs of a point came to the same" if has_runs else "One run of each"
        return (
            f"{often}, so that nobody knows what is chance. The program is not told {{{SEED}}}, which {again} varies."
        )
    most = max(len(point.runs) for point in points)
    runs = "1 run" if most == 1 else f"up to {most} runs"
    of_which = "" if is_of_time(record.objective[0]) else " over points of like value"
    return (
        f"± is half of a 95 % interval, by Student's t with the spread between runs pooled{of_which} ({runs} of a"
        " point)."
    )
