"""The course of a search that chooses its points one by one: which it asked for, why, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from conf.errors import ConfigError
from conf.types.sweep_spec import Objective, SearchPlan
from conf.units import TERA, count_of
from results.analysis.findings.comparable import display_name, outcome_words
from results.render.charts import category, dots, layer, quantity, tooltip
from results.render.section import Block, NamedTable, Paragraph, Plot, ReportSubject, Section
from results.render.table import Table, number, text
from results.render.units import round_to_digits, signed_percent
from sweeps.folder.journal import History
from sweeps.points.objectives import cost, front, is_better_when_larger, measured_value, unit_of
from sweeps.reading import TrialReading
from sweeps.search.axes.seen_points import SeenPoint, best_points, seen_points
from sweeps.sweep import first_runs, points_of_configuration
from sweeps.trial import SweepFolder

CONFIGURATION = "configuration.yaml"
COLUMNS = ("#", "trial", "why it was asked for", "expected gain %", "found gain %", "outcome")


@dataclass(frozen=True)
class ProposedTrial:
    """A trial that the search asked for, in its order.

    Attributes:
        value: of the first objective; None where it was not measured.
        found_gain: by which share of the best before it is better; negative where it is worse, None where not known.
    """

    reading: TrialReading
    value: float | None
    found_gain: float | None


def section(subject: ReportSubject) -> Section | None:
    """Return the section; None if no search has asked for a point: all were listed, though some ran again."""
    history = History.kept_in(subject.sweep.folder)
    results = points_of_configuration(subject.results)
    if not any(each.name in history.asked for each in first_runs(results)):
        return None
    plan = search_plan(subject.sweep.folder)
    objectives: tuple[Objective, ...] = plan.objective if plan else ("throughput",)
    course = _course(results, frozenset(history.asked), objectives[0])
    blocks = tuple(_blocks(results, plan, objectives, course))
    finding = _finding(course, history.finished)
    return Section("learned", "What the search learned", "measured and predicted", finding, blocks)


def search_plan(folder: SweepFolder) -> SearchPlan | None:
    """Return the search by which the sweep came to its points, from the configuration on record; None without one."""
    try:
        tree = yaml.safe_load((folder.path / "provenance" / CONFIGURATION).read_text(errors="replace"))
        return SearchPlan.model_validate(tree["search"])
    except (OSError, yaml.YAMLError, ValidationError, ConfigError, TypeError, KeyError):
        return None


def _course(results: Sequence[TrialReading], proposed: frozenset[str], objective: Objective) -> list[ProposedTrial]:
    """The trials that were asked for, each beside the best of those before it, the baseline among them."""
    course: list[ProposedTrial] = []
    best = math.inf
    for reading in results:
        value = _value(objective, reading)
        as_cost = None if value is None else cost(objective, value)
        if reading.trial.trial_id in proposed:
            # Both are costs, negative where more is better.
            is_known = math.isfinite(best) and best != 0
            gain = (best - as_cost) / abs(best) if is_known and as_cost is not None else None
            course.append(ProposedTrial(reading, value, gain))
        if as_cost is not None:
            best = min(best, as_cost)
    return course


def _value(objective: Objective, reading: TrialReading) -> float | None:
    experiment = reading.experiment
    if objective == "dollars" and experiment and experiment.price_per_hour is None:
        return None
    value = measured_value(objective, reading)
    return value if value is not None and math.isfinite(value) else None


def _finding(course: Sequence[ProposedTrial], finished: str) -> str:
    num_measured = sum(each.value is not None for each in course)
    counted = count_of(len(course), "trial")
    ending = f"It stopped because {finished}." if finished else "It has not said that it is finished."
    return f"The search asked for {counted}, {num_measured} of which measured something. {ending}"


def _blocks(
    results: Sequence[TrialReading],
    plan: SearchPlan | None,
    objectives: Sequence[Objective],
    course: Sequence[ProposedTrial],
) -> Iterator[Block]:
    for line in map(str.strip, sentences(results, plan)):
        # With a capital where it begins with a word, for what are items of a list in a terminal.
        begun = line if not line or "=" in line.split()[0] else line[0].upper() + line[1:]
        yield Paragraph(begun if begun.endswith((".", ":")) else f"{begun}.")
    if sum(each.value is not None for each in course):
        yield _progress(results, objectives[0])
    if len(objectives) > 1:
        yield from _fronts(first_runs(results), objectives)
    yield Paragraph(
        "An expected gain is what the search expected when it asked, over the best that it knew then; a found gain is"
        " measured, over the best of the trials before it, which may have been running still when it was asked for."
    )
    yield NamedTable("search-course", _table(course))


def sentences(results: Sequence[TrialReading], plan: SearchPlan | None) -> list[str]:
    """Sentences on the best points, and, of layouts, on the error of the prediction."""
    trials = first_runs(results)
    if plan is not None and (plan.kind != "bayes" or len(plan.objective) > 1 or plan.objective[0] == "loss"):
        return list(best_points(plan.objective, seen_points(trials, plan.objective)))
    from sweeps.search.layouts.bayes import lessons  # with Hydra, for which no other report has to wait
    from sweeps.search.layouts.observed import Observer

    return lessons(Observer(None).observe(trials))


def _progress(results: Sequence[TrialReading], objective: Objective) -> Plot:
    """Every measured trial in the order of the search, and the best so far."""
    scale = TERA if objective == "throughput" else 1.0
    unit = "model TFLOPS per device" if objective == "throughput" else unit_of(objective, results) or objective
    title = f"measured {unit}"
    values = list(_progress_values(results, objective, scale))
    x = quantity("number", "trial, in the order of the search", axis={"tickMinStep": 1})
    y, shown = quantity("value", title, scale={"zero": False}), tooltip("trial", "value", "best so far")
    return Plot(
        "search-progress",
        "Points are trials in the order in which they were asked for, 0 being the first that was listed; the line is"
        " the best so far.",
        {
            "data": {"values": values},
            "layer": [
                layer({"type": "line", "interpolate": "step-after"}, x=x, y=quantity("best so far", title)),
                layer(dots(60, color="var(--measured)"), x=x, y=y, tooltip=shown),
            ],
            "height": 280,
        },
    )


def _progress_values(results: Sequence[TrialReading], objective: Objective, scale: float) -> Iterator[dict[str, Any]]:
    best: float | None = None
    better = max if is_better_when_larger(objective) else min
    for position, reading in enumerate(results):
        value = _value(objective, reading)
        if value is not None:
            best = value if best is None else better(best, value)
            shown = {"value": round_to_digits(value / scale), "best so far": round_to_digits(best / scale)}
            yield {"number": position, "trial": display_name(reading), **shown}


def _fronts(results: Sequence[TrialReading], objectives: Sequence[Objective]) -> Iterator[Plot]:
    """The measured points in the first two objectives, and which of them no other beats in all objectives."""
    ended = [each for each in seen_points(results, objectives) if each.costs and all(map(math.isfinite, each.costs))]
    if not ended:
        return
    best = set(front([each.costs or () for each in ended]))
    values = [_front_value(each, objectives, is_best=index in best) for index, each in enumerate(ended)]
    titles = [", ".join(filter(None, (f"measured {name}", unit_of(name, results)))) for name in objectives[:2]]
    both = zip(objectives, titles, strict=False)
    x, y = (quantity(_field(name), title, scale={"zero": False}) for name, title in both)
    shape = category("which", legend=None)
    shown = [{"field": _field(name), "title": name} for name in ("point", *objectives, "which")]
    yield Plot(
        "search-front",
        f"Measured points; those on the front are beaten by no other in {' and '.join(objectives)}.",
        {**layer(dots(70), values, x=x, y=y, color=category("which"), shape=shape, tooltip=shown), "height": 300},
    )


def _field(name: str) -> str:
    """The name as Vega-Lite wants it, which takes a dot for a way into a value."""
    return name.replace(".", "\\.")


def _front_value(point: SeenPoint, objectives: Sequence[Objective], *, is_best: bool) -> dict[str, Any]:
    costs = zip(objectives, point.costs or (), strict=True)
    return {
        "point": ", ".join(f"{key}={value}" for key, value in point.point.items()) or "the baseline",
        "which": "on the front" if is_best else "beaten",
        **{objective: round_to_digits(cost(objective, value)) for objective, value in costs},
    }


def _table(course: Sequence[ProposedTrial]) -> Table:
    rows = tuple(
        (
            number(str(position), position),
            text(display_name(each.reading)),
            text(each.reading.trial.chosen_because or ""),
            number(signed_percent(each.reading.trial.expected_gain), each.reading.trial.expected_gain),
            number(signed_percent(each.found_gain), each.found_gain),
            text(outcome_words(each.reading.outcome)),
        )
        for position, each in enumerate(course, start=1)
    )
    return Table(COLUMNS, rows, frozenset({"#", "expected gain %", "found gain %"}))
