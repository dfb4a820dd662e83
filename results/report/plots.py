"""The plots of the HTML report as plain Plotly figures.

They hold data and axis titles only; the page itself adds the colours of its theme, light or dark.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from conf.units import GIBIBYTE, TERA
from results.report.comparable import has_device_per_rank
from results.report.verdict import rate_spread
from results.terminal import by_prediction, plan_label
from sweeps.reading import TrialReading, ranked
from sweeps.trial import SweepRecord, Trial
from train_core.costs import STEP_TERMS, Estimate

Figure = dict[str, Any]
MAX_BARS = 24
MAX_CURVES = 24
PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d")
TERM_NAMES = {
    "compute_seconds": "compute",
    "tensor_seconds": "tensor parallel",
    "pipeline_seconds": "pipeline sends",
    "bubble_seconds": "bubble",
    "data_seconds": "data parallel",
    "optimizer_seconds": "optimizer",
    "waiting_seconds": "slowest device",
}


def figures(record: SweepRecord, results: Sequence[TrialReading]) -> dict[str, Figure]:
    """The plots that have something to show, by the id of their place in the page."""
    fitting = [trial for trial in by_prediction(record.plan) if trial.infeasible_reason is None]
    built = {
        "measured-rate": measured_rate(ranked(list(results))),
        "loss": loss_curves(ranked(list(results))),
        "step-terms": predicted_step_terms(fitting[:MAX_BARS]),
        "memory": predicted_memory(by_prediction(record.plan)),
        # A proxy is another model on another machine, so its measurements never stand beside these predictions.
        "beside": predicted_beside_measured(results) if record.mode == "cluster" else None,
    }
    return {name: figure for name, figure in built.items() if figure}


def measured_rate(best_first: Sequence[TrialReading]) -> Figure | None:
    """Bars of model TFLOPS per device, with the rates of the slowest and the fastest timed step."""
    shown = [(result, result.performance) for result in best_first[:MAX_BARS] if result.performance]
    if not shown:
        return None
    spreads = [rate_spread(performance) for _, performance in shown]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": _distinct_names([result.label for result, _ in shown]),
        "x": [performance.model_flops_per_second_per_device / TERA for _, performance in shown],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "arrayminus": [below / TERA for below, _ in spreads],
            "array": [above / TERA for _, above in spreads],
            "thickness": 1.2,
            "color": "#888888",
        },
        "marker": {"color": [PALETTE[1] if result.trial.is_baseline else PALETTE[0] for result, _ in shown]},
        "hovertemplate": "%{y}<br>%{x:.4g} TFLOPS<extra></extra>",
    }
    return _bar_chart([bars], "measured model TFLOPS per device", len(shown))


def loss_curves(best_first: Sequence[TrialReading]) -> Figure | None:
    """Training loss over the steps, every measured trial a line."""
    shown = [(result, result.performance) for result in best_first[:MAX_CURVES] if result.performance]
    names = _distinct_names([result.label for result, _ in shown])
    lines = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": performance.recorded_steps,
            "y": [loss if math.isfinite(loss) else None for loss in performance.losses],  # JSON has no NaN
            "line": {"width": 1.5, "color": PALETTE[position % len(PALETTE)]},
            "marker": {"size": 4},
        }
        for position, (name, (_, performance)) in enumerate(zip(names, shown, strict=True))
        if performance
    ]
    if not lines:
        return None
    layout = {"xaxis": _axis("step"), "yaxis": _axis("training loss"), "height": 420, "showlegend": True}
    # Plotly does not know this key; report.js reads it, because a long legend would leave a phone no room for the plot.
    return {"data": lines, "layout": layout | {"hideLegendWhenNarrow": len(lines) > 6}}


def predicted_step_terms(fitting: Sequence[Trial]) -> Figure | None:
    """Stacked bars that show where the predicted step goes, for the fastest points that fit."""
    shown = [(trial, trial.estimate) for trial in fitting if trial.estimate]
    if not shown:
        return None
    names = _distinct_names([plan_label(trial) for trial, _ in shown])
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": TERM_NAMES[term],
            "y": names,
            "x": [getattr(estimate.step_terms, term) for _, estimate in shown],
            "marker": {"color": PALETTE[position % len(PALETTE)]},
            "hovertemplate": "%{y}<br>%{x:.4g} s<extra>%{fullData.name}</extra>",
        }
        for position, term in enumerate(STEP_TERMS)
    ]
    figure = _bar_chart(bars, "predicted seconds of one step", len(shown))
    figure["layout"] |= {"barmode": "stack", "showlegend": True}
    return figure


def predicted_memory(best_first: Sequence[Trial]) -> Figure | None:
    """Memory of the worst stage of each point, against what a device has."""
    shown = [(trial, trial.estimate) for trial in _around_the_limit(best_first) if trial.estimate]
    if not shown:
        return None
    names = _distinct_names([plan_label(trial) for trial, _ in shown])
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "fits" if fits else "does not fit",
            "y": [name for name, (_, estimate) in zip(names, shown, strict=True) if estimate.fits == fits],
            "x": [estimate.peak_memory_bytes / GIBIBYTE for _, estimate in shown if estimate.fits == fits],
            "marker": {"color": PALETTE[2] if fits else PALETTE[4]},
            "hovertemplate": "%{y}<br>%{x:.1f} GiB<extra></extra>",
        }
        for fits in (True, False)
    ]
    figure = _bar_chart([bar for bar in bars if bar["y"]], "predicted GiB per device, worst stage", len(shown))
    figure["layout"] |= {"shapes": _capacity_lines([estimate for _, estimate in shown]), "showlegend": True}
    widest = max(max(estimate.peak_memory_bytes, estimate.memory_capacity_bytes) for _, estimate in shown)
    # A little room on the right for the label of the capacity.
    figure["layout"]["xaxis"] |= {"range": [0, 1.08 * widest / GIBIBYTE]}
    # Two traces would otherwise put all that fit before all that do not, wherever they belong in the order.
    figure["layout"]["yaxis"] |= {"categoryorder": "array", "categoryarray": names}
    return figure


def _around_the_limit(best_first: Sequence[Trial]) -> list[Trial]:
    """The fastest points that fit, and those that need only a little more memory than there is."""
    estimated = [trial for trial in best_first if trial.estimate]
    fitting = [trial for trial in estimated if trial.infeasible_reason is None]
    lacking = [trial for trial in estimated if trial.infeasible_reason is not None]
    return fitting[: MAX_BARS // 2] + lacking[: MAX_BARS // 2]


def _capacity_lines(estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    """A dashed line for the memory of one device."""
    return [
        {
            "type": "line",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": capacity / GIBIBYTE,
            "x1": capacity / GIBIBYTE,
            "line": {"dash": "dash", "width": 2, "color": PALETTE[4]},
            "label": {"text": f"{capacity / GIBIBYTE:.0f} GiB", "textposition": "end", "textangle": 0},
        }
        for capacity in sorted({estimate.memory_capacity_bytes for estimate in estimates})
    ]


def predicted_beside_measured(results: Sequence[TrialReading]) -> Figure | None:
    """Step seconds, measured over predicted; a perfect prediction lies on the diagonal."""
    shown = [(r.label, r.trial.estimate, r.performance) for r in results if has_device_per_rank(r)]
    if not shown:
        return None
    predicted = [estimate.step_seconds for _, estimate, _ in shown if estimate]
    measured = [performance.step_seconds for _, _, performance in shown if performance]
    low, high = 0.9 * min(*predicted, *measured), 1.1 * max(*predicted, *measured)
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": "trials",
        "x": predicted,
        "y": measured,
        "text": [label for label, _, _ in shown],
        "marker": {"size": 9, "color": PALETTE[0]},
        "hovertemplate": "%{text}<br>predicted %{x:.4g} s, measured %{y:.4g} s<extra></extra>",
    }
    diagonal: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": "predicted = measured",
        "x": [low, high],
        "y": [low, high],
    }
    diagonal["line"] = {"dash": "dot", "color": PALETTE[4]}
    layout = {"xaxis": _axis("predicted step, s"), "yaxis": _axis("measured step, s"), "height": 420}
    return {"data": [points, diagonal], "layout": layout | {"showlegend": True}}


def _bar_chart(bars: list[dict[str, Any]], title: str, num_bars: int) -> Figure:
    """Horizontal bars, the first on top; long layout names stay readable."""
    layout = {
        "xaxis": _axis(title) | {"rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "height": 130 + 24 * num_bars,
        "bargap": 0.3,
        "showlegend": False,
    }
    return {"data": bars, "layout": layout}


def _axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title}, "automargin": True}


def _distinct_names(labels: Sequence[str]) -> list[str]:
    """The labels, with later namesakes numbered because Plotly merges bars of the same name."""
    seen: Counter[str] = Counter()
    names = []
    for label in labels:
        seen[label] += 1
        names.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return names
