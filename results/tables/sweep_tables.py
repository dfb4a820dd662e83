"""Tables of a sweep: its trials in their ranking, what a search asked for, and its plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conf.plan.setup import Setup
from results.analysis.findings.circumstances import noise_of
from results.analysis.findings.objective import words_of
from results.analysis.findings.ranking import (
    by_prediction,
    measured_cells,
    predicted_cells,
    relations_of_points,
    sought_cells,
)
from results.analysis.scaling import Scaling
from results.render.legend import legend_in_short
from results.render.table import Cell, Table, breakable, text
from results.render.units import ABSENT, gib
from sweeps.labels import Labels
from sweeps.ranking.disturbed import disturbances
from sweeps.ranking.points import MeasuredPoint, places, sought_points
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord, Trial
from train_core.trial.measurement import Outcome

DISTURBED = "DISTURBED"
"""Shown in the place of COMPLETED where something disturbed the run, or every run of the point."""
STYLES: dict[str | None, str] = {
    DISTURBED: "yellow",
    Outcome.COMPLETED: "green",
    Outcome.RUNNING: "cyan",
    Outcome.INFEASIBLE: "dim",
    Outcome.PENDING: "dim",
    Outcome.CANCELLED: "yellow",
    Outcome.PREEMPTED: "yellow",
    Outcome.PRUNED: "dim",
    None: "dim",
}
"""The colour of each outcome. None is a trial that was left out; outcomes that are not named ended badly."""

BAD_END = "red"
RANKED_COLUMNS = {
    "TFLOPS": "model TFLOPS",
    "MFU %": "MFU %",
    "step s": "step s",
    "+- %": "± %",
    "n": "runs",
    "GiB": "peak GiB",
    "x": "x baseline",
}
PLAN_COLUMNS = {"devices": "devices", "TFLOPS": "model TFLOPS", "MFU %": "MFU %", "step s": "step s", "GiB": "peak GiB"}


def ranking_table(record: SweepRecord, readings: Sequence[TrialReading]) -> Table:
    """The points of a sweep, best first by what it seeks; below them, by outcome, what no run of its point measured."""
    points, by_rate = sought_points(record, readings), record.seeks_rate
    words = list(map(words_of, record.objective))
    of_time = ["step s"] if record.shows_rates else []
    columns = list(RANKED_COLUMNS) if by_rate else [*words, "95 %", "n", *of_time]
    relations = relations_of_points(points, readings)
    rows = []
    for place, point in zip(places(points), points, strict=True):
        outcome = _outcome(DISTURBED if point.disturbed else point.reading.outcome)
        cells = (
            _rate_cells(point, relations[point.middle.trial.trial_id])
            if by_rate
            else sought_cells(point)[: len(columns)]
        )
        rows.append((text(place), _layout(point.name, point.is_baseline), outcome, *cells))
    for reading in _never_measured(readings, points):
        name, absent = _layout(reading.label, reading.trial.is_baseline), [text(ABSENT)] * len(columns)
        rows.append((text(""), name, _outcome(reading.outcome), *absent))
    title = f"{_measured_where(readings)}, ranked by {'TFLOPS per device' if by_rate else ' and '.join(words)}"
    caption = _rate_caption(record, readings, points)
    if not by_rate:
        equal = " =: another may be as good. ?: how much is chance is not known." if len(words) == 1 else ""
        caption = f"95 %: interval. n: runs.{equal}{_names((), record.labels)}"
    return _table(title, caption, record.labels.heading if by_rate else "trial", columns, rows)


def _rate_cells(point: MeasuredPoint, relation: Scaling) -> list[Cell]:
    speed_up = ABSENT if relation.speed_up is None else f"{relation.speed_up:.2f}"
    cells = measured_cells(point, relation) | {"x baseline": text(speed_up)}
    return [cells[name] for name in RANKED_COLUMNS.values()]


def _rate_caption(record: SweepRecord, readings: Sequence[TrialReading], points: Sequence[MeasuredPoint]) -> str:
    setups = [each.experiment for each in readings if each.experiment]
    return (
        f"TFLOPS: model FLOPs per device. MFU: of the peak{_peak_note(readings)}. GiB: the fullest rank (on a CPU its"
        " resident memory, Python and torch included). x: tokens/s over the baseline's. n: runs, of which the middle"
        " one is shown, or the mean of two; +-: half of the interval in which the step's seconds lie. =: another may be"
        f" as fast.{_words_on_asides(readings, points)} *: the baseline.{_names(setups, record.labels)}"
    )


def _never_measured(readings: Sequence[TrialReading], points: Sequence[MeasuredPoint]) -> list[TrialReading]:
    """The trials whose point no run has measured, by outcome."""
    measured = {run.experiment.fingerprint for point in points for run in point.runs if run.experiment}
    others = [each for each in readings if not (each.experiment and each.experiment.fingerprint in measured)]
    return sorted(others, key=lambda each: str(each.outcome and each.outcome.value))


def _words_on_asides(readings: Sequence[TrialReading], points: Sequence[MeasuredPoint]) -> str:
    """Sentences on what disturbed the points that are called so, and on others without a place; empty if none is."""
    ids = {run.trial.trial_id for point in points if point.disturbed for run in point.runs}
    reasons = dict.fromkeys(reason for trial_id, reason in disturbances(readings).items() if trial_id in ids)
    disturbed = f" DISTURBED, and without a place: {', or '.join(reasons)}." if reasons else ""
    others = dict.fromkeys(point.aside for point in points if point.aside)
    return disturbed + (f" Last and without a place: what is {', or '.join(others)}." if others else "")


def _peak_note(readings: Sequence[TrialReading]) -> str:
    """Says so where the peaks that were measured beside the trials differ, as on a machine that others use too."""
    noise = noise_of(readings)
    if noise is None:
        return ""
    return f" that was measured with the run (these vary x{noise:.2g}: MFUs are not comparable)"


def _measured_where(readings: Sequence[TrialReading]) -> str:
    """`Measured here`, or the cluster whose jobs measured it; of a sweep of which nothing has begun neither."""
    if readings and not any(each.submission or each.performance or each.metrics for each in readings):
        return "Nothing measured"
    clusters = dict.fromkeys(each.experiment.cluster.name for each in readings if each.is_in_slurm and each.experiment)
    return f"Measured on {', '.join(clusters)}" if clusters else "Measured here"


def plan_table(record: SweepRecord, trials: Sequence[Trial]) -> Table:
    """Points of the plan as predicted: those that fit, fastest first, and then the others by what they lack."""
    # With several types of devices there is no single capacity to put into the caption.
    capacities = {gib(trial.estimate.memory_capacity_bytes) for trial in trials if trial.estimate}
    of_capacity = f", of {capacities.pop()}" if len(capacities) == 1 else ""
    names = _names((trial.experiment for trial in trials if trial.experiment), record.plan_labels)
    # Seconds of a step compare only on equal devices, so their number is shown where it differs.
    sizes = {trial.experiment.parallel.world_size for trial in trials if trial.experiment}
    known = PLAN_COLUMNS if record.shows_rates else ["devices"]
    columns = [name for name in known if name != "devices" or len(sizes) > 1]
    rows = []
    for position, trial in enumerate(by_prediction(trials) if record.shows_rates else trials, start=1):
        cells = predicted_cells(trial)
        place = text(position if trial.infeasible_reason is None else "")
        name = _layout(record.plan_label_of(trial), trial.is_baseline)
        rows.append((place, name, _fit(trial), *(cells[PLAN_COLUMNS[column]] for column in columns)))
    if not record.shows_rates:
        return _table("As listed", f"*: the baseline.{names}", record.plan_labels.heading, columns, rows)
    return _table(
        "Predicted, not measured, ranked by TFLOPS per device",
        f"TFLOPS: model FLOPs per device. GiB: the worst stage, per device{of_capacity}. *: the baseline.{names}",
        record.plan_labels.heading,
        columns,
        rows,
    )


def _names(setups: Iterable[Setup], labels: Labels) -> str:
    """A sentence that explains the names in a table; empty where there is none."""
    layouts = legend_in_short(setups) if labels.names_layouts else ""
    keys = ", ".join(f"{name}: {key}" for name, key in labels.legend)
    legend = ", ".join(filter(None, (layouts, keys)))
    return f" Names: {legend}." if legend else ""


def _table(title: str, caption: str, heading: str, columns: Iterable[str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    """A table of places, names, outcomes and then figures."""
    numeric = frozenset(("#", *columns))
    return Table(("#", heading, "outcome", *columns), tuple(rows), numeric, title=title, caption=caption)


def _layout(label: str, is_baseline: bool) -> Cell:
    return breakable(f"{label} *" if is_baseline else label, after="- ")


def outcome_style(outcome: str | None) -> str:
    return STYLES.get(outcome, BAD_END)


def _outcome(outcome: str | None) -> Cell:
    return _outcome_cell((outcome or "left out").replace("_", " "), outcome_style(outcome))


def _fit(trial: Trial) -> Cell:
    if trial.estimate is None:
        return _outcome_cell("cannot exist", "dim")
    if trial.infeasible_reason is None:
        return _outcome_cell("fits", "green")
    if not trial.estimate.shortfall_bytes:
        return _outcome_cell("cannot run", "yellow")
    # The unit stands above the memory beside it: with it, such a row took two lines in 100 columns.
    return _outcome_cell(f"lacks {gib(trial.estimate.shortfall_bytes)}", "yellow")


def _outcome_cell(words: str, style: str) -> Cell:
    return Cell(words, style=style, gives_way=True)
