"""Tables of a sweep: its trials in their ranking, what a search asked for, and its plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from conf.plan.setup import Setup
from results.report.findings.sought import half_width_text, value_text, words_of
from results.terminal.layout_names import LayoutCell, OutcomeCell, legend_in_short
from results.units import ABSENT, count, gib, percent, seconds, share_of_peak, tflops
from sweeps.labels import Labels
from sweeps.reading import TrialReading
from sweeps.repeats.by_objective import sought_points
from sweeps.repeats.points import NOISY_RATIO
from sweeps.repeats.ranking import MEASURED_PEAK
from sweeps.trial import SweepRecord, Trial
from train_core.measurement import Outcome

if TYPE_CHECKING:
    import pandas  # costs 0.4 s, which printing a plan does not need

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


def ranked_table(frame: pandas.DataFrame, setups: Iterable[Setup] = (), labels: Labels | None = None) -> Table:
    """The trials of `collect`, the measured ones first and fastest first; below them the others by outcome.

    TFLOPS are model FLOPs per device; the step is the slowest rank's median.

    Args:
        setups: those whose names stand in the table, which its caption explains.
        labels: how the trials are called.
    """
    table = _table(
        "Measured here, ranked by TFLOPS per device",
        f"TFLOPS: model FLOPs per device. MFU: of the peak{_peak_note(frame)}. GiB: the fullest rank (on a CPU its"
        " resident memory, Python and torch included). x: tokens/s over the baseline's. n: runs, of which the middle"
        " one is shown, or the mean of two; +-: half of the interval in which the step's seconds lie. =: another may be"
        f" as fast.{_disturbed_words(frame)} *: the baseline.{_names(setups, labels)}",
        labels.heading if labels else "layout",
    )
    _numeric(table, "TFLOPS", "MFU %", "step s", "+- %", "n", "GiB", "x")
    for row in _ranked_rows(frame):
        table.add_row(
            _place(row),
            _layout(str(row["label"]), bool(row["is_baseline"])),
            _outcome(DISTURBED if _is_disturbed(row) else row["outcome"]),
            tflops(_rate_of_point(row, "measured_model_flops_per_second_per_device")),
            share_of_peak(_rate_of_point(row, "measured_model_flops_utilization")),
            seconds(_number_in(row, "point_step_seconds")),
            _half_width(row),
            count(_number_in(row, "num_runs")),
            gib(_number_in(row, "measured_peak_memory_bytes")),
            _ratio(_number_in(row, "speed_up")),
        )
    return table


def _is_disturbed(row: dict[str, Any]) -> bool:
    """True if no steady run measured the point: such a one has no place."""
    return _number_in(row, "measured_step_seconds") is not None and not _place(row)


def _place(row: dict[str, Any]) -> str:
    """Return the place; empty if it has none, whatever pandas has made of None."""
    return row["place"] if isinstance(row["place"], str) else ""


def _disturbed_words(frame: pandas.DataFrame) -> str:
    """Return what disturbed the points that are called so; empty if none is."""
    why = dict.fromkeys(str(row["disturbed"]) for row in _plain_rows(frame) if _is_disturbed(row))
    return f" DISTURBED, and without a place: {', or '.join(why)}." if why else ""


def _rate_of_point(row: dict[str, Any], name: str) -> float | None:
    """A rate of the middle run at the seconds of its point, which differ where they are the mean of two runs."""
    value, own, of_point = (_number_in(row, each) for each in (name, "measured_step_seconds", "point_step_seconds"))
    return value if value is None or own is None or of_point is None else value * own / of_point


def _peak_note(frame: pandas.DataFrame) -> str:
    """Says so where the peaks that were measured beside the trials differ, as on a machine that others use too."""
    rows = [row for row in _plain_rows(frame) if row["measured_peak_source"] == MEASURED_PEAK]
    peaks = [_number_in(row, "measured_peak_flops_per_second") or 0.0 for row in rows]
    if not peaks or max(peaks) <= NOISY_RATIO * min(peaks):
        return ""
    return f" that was measured beside the run (these vary x{max(peaks) / min(peaks):.2g}: MFUs are not comparable)"


def sought_table(record: SweepRecord, results: Sequence[TrialReading]) -> Table:
    """The points of a sweep that seeks something else than the highest rate, best first; below them what failed."""
    points = sought_points(record, results)
    words = [words_of(objective) for objective in record.objective]
    caption = f"+-: half of a 95 % interval. n: runs.{_names((), record.labels)}"
    table = _table(f"Measured here, ranked by {' and '.join(words)}", caption, "trial")
    _numeric(table, *words, "+-", "n", "step s")
    for position, point in enumerate(points, start=1):
        both = zip(record.objective, point.values, strict=True)
        half, performance = point.half_width, point.reading.performance
        table.add_row(
            str(position),
            _layout(point.name, point.reading.trial.is_baseline),
            _outcome(point.reading.outcome),
            *(value_text(objective, value) for objective, value in both),
            half_width_text(record.objective[0], half),
            str(len(point.runs)),
            seconds(performance.step_seconds if performance else None),
        )
    for result in results:
        if result.performance is None and result.outcome is not None:
            table.add_row("", _layout(result.title, result.trial.is_baseline), _outcome(result.outcome))
    return table


def plan_table(record: SweepRecord, trials: Sequence[Trial]) -> Table:
    """Points of the plan as predicted: those that fit, fastest first, and then the others by what they lack."""
    # With several types of devices there is no single capacity to put into the caption.
    capacities = {gib(trial.estimate.memory_capacity_bytes) for trial in trials if trial.estimate}
    of_capacity = f", of {capacities.pop()}" if len(capacities) == 1 else ""
    names = _names((trial.experiment for trial in trials if trial.experiment), record.plan_labels)
    caption = f"TFLOPS: model FLOPs per device. GiB: the worst stage, per device{of_capacity}. *: the baseline.{names}"
    table = _table("Predicted, not measured, ranked by TFLOPS per device", caption, record.plan_labels.heading)
    # Seconds of a step compare only on equal devices, so their number is shown where it differs.
    sizes = {trial.experiment.parallel.world_size for trial in trials if trial.experiment}
    _numeric(table, *(["devices"] if len(sizes) > 1 else []), "TFLOPS", "MFU %", "step s", "GiB")
    for position, trial in enumerate(by_prediction(trials), start=1):
        estimate, size = trial.estimate, trial.experiment.parallel.world_size if trial.experiment else None
        table.add_row(
            str(position) if trial.infeasible_reason is None else "",
            _layout(record.plan_label_of(trial), trial.is_baseline),
            _fit(trial),
            *([count(size)] if len(sizes) > 1 else []),
            tflops(estimate.model_flops_per_second_per_device if estimate else None),
            percent(estimate.model_flops_utilization if estimate else None),
            seconds(estimate.step_seconds if estimate else None),
            gib(estimate.peak_memory_bytes if estimate else None),
        )
    return table


def _names(setups: Iterable[Setup], labels: Labels | None) -> str:
    """A sentence that explains the names in a table; empty where there is none."""
    layouts = legend_in_short(setups) if labels is None or labels.names_layouts else ""
    keys = ", ".join(f"{name}: {key}" for name, key in labels.legend) if labels else ""
    legend = ", ".join(filter(None, (layouts, keys)))
    return f" Names: {legend}." if legend else ""


def by_prediction(trials: Sequence[Trial]) -> list[Trial]:
    """Trials in the order of their predictions.

    First those that fit, fastest first; then those that do not, by what they lack; then those that cannot exist.
    """
    return sorted(trials, key=_prediction_order)


def _prediction_order(trial: Trial) -> tuple[int, float]:
    if trial.estimate is None:
        return (2, 0.0)
    if trial.infeasible_reason is not None:
        return (1, float(trial.estimate.shortfall_bytes))
    return (0, -trial.estimate.model_flops_per_second_per_device)


def _table(title: str, caption: str, heading: str) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    table.caption_justify = "left"
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column(heading)
    table.add_column("outcome")
    return table


def _numeric(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def _ranked_rows(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """A row for each point, by its middle run; of a point that was not measured, for each trial."""
    rows = _plain_rows(frame)
    measured = {row["fingerprint"] for row in rows if row["is_middle_run"] is True}
    return sorted(
        (row for row in rows if row["is_middle_run"] is True or row["fingerprint"] not in measured), key=_rank
    )


def _plain_rows(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def _rank(row: dict[str, Any]) -> tuple[int, float, str]:
    rate = _rate_of_point(row, "measured_model_flops_per_second_per_device")
    return (int(_is_disturbed(row)), -rate, "") if rate is not None else (2, 0.0, str(row["outcome"]))


def _number_in(row: dict[str, Any], name: str) -> float | None:
    """The number in a row, or None: pandas turns None into NaN in a column of numbers."""
    value = row.get(name)
    # Only NaN differs from itself.
    return None if value is None or value != value else float(value)


def _layout(label: str, is_baseline: bool) -> LayoutCell:
    return LayoutCell(f"{label} *" if is_baseline else label, after="- ")


def outcome_style(outcome: str | None) -> str:
    """The colour in which every table shows the outcome."""
    return STYLES.get(outcome, BAD_END)


def _outcome(outcome: Any) -> OutcomeCell:
    named = outcome if isinstance(outcome, str) else None
    return OutcomeCell((named or "left out").replace("_", " "), outcome_style(named))


def _fit(trial: Trial) -> OutcomeCell:
    if trial.estimate is None:
        return OutcomeCell("cannot exist", "dim")
    if trial.infeasible_reason is None:
        return OutcomeCell("fits", "green")
    if not trial.estimate.shortfall_bytes:
        return OutcomeCell("cannot run", "yellow")
    return OutcomeCell(f"{gib(trial.estimate.shortfall_bytes)} GiB short", "yellow")


def _half_width(row: dict[str, Any]) -> str:
    """Half of the interval, as a percentage of the seconds that are shown."""
    low, high, shown = (
        _number_in(row, name) for name in ("step_seconds_low", "step_seconds_high", "point_step_seconds")
    )
    return ABSENT if low is None or high is None or not shown else f"{50 * (high - low) / shown:.0f}"


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"
