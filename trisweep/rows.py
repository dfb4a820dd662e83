"""What the Python face returns: plans as predicted, and a sweep as measured; each also as a frame of pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from results.render.table import Table, text
from results.render.units import ABSENT, gib, percent, seconds, tflops

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


@dataclass(frozen=True)
class PredictedPlan:
    """One plan as predicted, not measured; None where something is not predicted.

    Attributes:
        layout: the plan in short, such as `tp4-pp8-dp32-mb1`.
        num_devices: GPUs of the whole job.
        step_seconds: seconds of a step; four of five steps are expected from `low_step_seconds` to `high_step_seconds`.
        model_flops_per_second_per_device: FLOP/s without those of recomputation.
        model_flops_utilization: their share of the peak, from 0 to 1.
        peak_memory_bytes: bytes of the fullest device, of `memory_capacity_bytes`.
        fits: it can exist and has the memory.
        why_not: the reason if it does not fit or cannot be priced; else empty.
        overrides: the words that give the plan to a command, or to `trisweep.sweep`.
        columns: all that is known of it, under the names of docs/json.md.
    """

    layout: str
    num_devices: int | None
    step_seconds: float | None
    low_step_seconds: float | None
    high_step_seconds: float | None
    model_flops_per_second_per_device: float | None
    model_flops_utilization: float | None
    peak_memory_bytes: int | None
    memory_capacity_bytes: int | None
    fits: bool
    why_not: str = ""
    overrides: tuple[str, ...] = ()
    columns: Row = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, layout: str, row: Row, why_not: str = "", overrides: Sequence[str] = ()) -> PredictedPlan:
        """The plan whose values stand in a row with `predicted_` before their names."""

        def predicted(name: str) -> Any:
            return row.get(f"predicted_{name}")

        return cls(
            layout,
            row.get("world_size"),
            predicted("step_seconds"),
            predicted("low_step_seconds"),
            predicted("high_step_seconds"),
            predicted("model_flops_per_second_per_device"),
            predicted("model_flops_utilization"),
            predicted("peak_memory_bytes"),
            row.get("memory_capacity_bytes", predicted("memory_capacity_bytes")),
            not why_not and predicted("step_seconds") is not None,
            why_not,
            tuple(overrides),
            row,
        )

    def _texts(self) -> dict[str, str]:
        low, high = self.low_step_seconds, self.high_step_seconds
        return {
            "layout": self.layout,
            "devices": ABSENT if self.num_devices is None else f"{self.num_devices:,}",
            "step s": seconds(self.step_seconds),
            "80 %": ABSENT if low is None or high is None else f"{seconds(low)}-{seconds(high)}",
            "TFLOPS": tflops(self.model_flops_per_second_per_device),
            "MFU %": percent(self.model_flops_utilization),
            "GiB": gib(self.peak_memory_bytes),
            "why not": self.why_not,
        }


class PredictedPlans(Sequence[PredictedPlan]):
    """Plans as predicted, the best first; a table in a notebook."""

    def __init__(self, plans: Sequence[PredictedPlan]) -> None:
        self._plans = tuple(plans)

    @overload
    def __getitem__(self, index: int) -> PredictedPlan: ...
    @overload
    def __getitem__(self, index: slice) -> PredictedPlans: ...
    def __getitem__(self, index: int | slice) -> PredictedPlan | PredictedPlans:
        return PredictedPlans(self._plans[index]) if isinstance(index, slice) else self._plans[index]

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def best(self) -> PredictedPlan | None:
        """The first plan that fits; None if none does."""
        return next((plan for plan in self if plan.fits), None)

    def to_dataframe(self) -> pd.DataFrame:
        """One row for each plan, with all columns that are known of any."""
        return _frame(
            {"layout": plan.layout, "fits": plan.fits, "why_not": plan.why_not, **plan.columns} for plan in self
        )

    def __repr__(self) -> str:
        return self._table().markdown() if self._plans else "no plans"

    def _repr_html_(self) -> str:
        return _html(self._table(), "Predicted, not measured.") if self._plans else "no plans"

    def _table(self) -> Table:
        rows = [plan._texts() for plan in self]
        kept = tuple(name for name in rows[0] if any(row[name] not in ("", ABSENT) for row in rows))
        cells = tuple(tuple(text(row[name]) for name in kept) for row in rows)
        return Table(kept, cells, frozenset(kept) - {"layout", "why not"})


@dataclass(frozen=True)
class MeasuredTrial:
    """One trial of a sweep, as far as it has come.

    Attributes:
        trial_id: the name of its folder.
        label: its name in tables: what varies in the sweep.
        outcome: COMPLETED, RUNNING, OUT_OF_MEMORY ...; None if it was left out.
        cause: why it ended so; empty of one that completed.
        point: the values that set it apart, by dotted key.
        step_seconds: measured: the median over the timed steps, of the slowest rank.
        predicted_step_seconds: the same on paper.
        metrics: what else it measured, by name; of later stages as `STAGE.FIGURE`.
        folder: where its logs and measurement lie.
        columns: all that is known of it, under the names of docs/metrics.md.
    """

    trial_id: str
    label: str
    outcome: str | None
    cause: str
    point: Row
    step_seconds: float | None
    predicted_step_seconds: float | None
    metrics: Mapping[str, float]
    folder: Path
    columns: Row = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class RankedPoint:
    """One point of a sweep in its ranking: what all of its runs measured together.

    Attributes:
        place: its place, such as `1`, with `=` where another may be as good; empty of one that can have none.
        label: its name in tables.
        values: by what the sweep seeks, such as `loss`; `throughput` is model FLOP/s of a device.
        interval: the 95 % interval of the first value; None where nothing says how it spreads.
        num_runs: how many runs it has.
        point: the values that set it apart, by dotted key.
    """

    place: str
    label: str
    values: Mapping[str, float]
    interval: tuple[float, float] | None
    num_runs: int
    point: Row


@dataclass(frozen=True)
class SweepResults:
    """A sweep as measured so far; a table in a notebook.

    Attributes:
        points: the points that were measured, the best first by what the sweep seeks.
        trials: every trial, also those that failed or wait.
    """

    name: str
    question: str
    folder: Path
    points: tuple[RankedPoint, ...]
    trials: tuple[MeasuredTrial, ...] = field(repr=False)
    _steps: Callable[[], Iterator[dict[str, Any]]] = field(repr=False)
    _ranking: Table = field(repr=False)

    @property
    def best(self) -> RankedPoint | None:
        """The first point that has a place; None if nothing was measured."""
        return next((point for point in self.points if point.place), None)

    @property
    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """By label, the 95 % interval of each point's first value; two that overlap cannot be told apart."""
        return {point.label: point.interval for point in self.points}

    def to_dataframe(self) -> pd.DataFrame:
        """One row for each trial, with the columns of the report's CSV."""
        return _frame(trial.columns for trial in self.trials)

    def steps_dataframe(self) -> pd.DataFrame:
        """One row for each step of each trial: `trial_id`, `step`, `loss`, `step_seconds` ..."""
        return _frame(self._steps())

    def __repr__(self) -> str:
        return f"{self.name}: {self.question}\n{self._ranking.markdown()}"

    def _repr_html_(self) -> str:
        return _html(self._ranking, f"{self.name}: {self.question} {self._ranking.title}.")


@dataclass(frozen=True)
class DiagnosedRun:
    """A run of yours, as its files tell of it; a table in a notebook.

    Attributes:
        name: that of its file.
        verdict: how it stands, such as `slower than its configuration explains`.
        measured_step_seconds: the middle of its steady steps; None where no file holds a step.
        predicted_step_seconds: what its configuration should take; four of five runs take from
            `low_step_seconds` to `high_step_seconds`. None where it could not be priced.
        suspects: what makes it slow, the dearest first, each as in docs/json.md: `says`, `seconds`, `evidence` ...
        proposals: what to change, the smallest change first: `changes`, `time_ratio`, `words` ...
        columns: all that is known of it, under the names of docs/json.md.
    """

    name: str
    verdict: str
    measured_step_seconds: float | None
    predicted_step_seconds: float | None
    low_step_seconds: float | None
    high_step_seconds: float | None
    suspects: tuple[Row, ...] = field(repr=False)
    proposals: tuple[Row, ...] = field(repr=False)
    columns: Row = field(repr=False)

    def _repr_html_(self) -> str:
        found = [(seconds(each["seconds"]), each["says"], each["remedy"]) for each in self.suspects]
        found += [
            (seconds(each["predicted_step_seconds"]), each["kind"], "; ".join(each["changes"]))
            for each in self.proposals
        ]
        rows = tuple(tuple(map(text, row)) for row in found)
        taken = f"{seconds(self.measured_step_seconds)} s a step, predicted {seconds(self.predicted_step_seconds)} s"
        return _html(Table(("s", "what", "instead"), rows, frozenset({"s"})), f"{self.name}: {self.verdict}. {taken}.")


def _frame(rows: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows))


def _html(table: Table, caption: str) -> str:
    """The table as a notebook shows it: plain cells, numbers to the right."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        aligned = zip(table.columns, texts, strict=True)
        return "".join(
            f'<{tag} style="text-align:{"right" if name in table.numeric else "left"}">{escape(each)}</{tag}>'
            for name, each in aligned
        )

    body = "".join(f"<tr>{cells('td', [cell.text for cell in row])}</tr>" for row in table.rows)
    head = f"<thead><tr>{cells('th', table.columns)}</tr></thead>"
    return f"<table><caption>{escape(caption)}</caption>{head}<tbody>{body}</tbody></table>"
