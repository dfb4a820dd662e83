"""Frontier's published rates and scaling efficiencies, whose configurations are inferred or assumed."""

from __future__ import annotations

from benchmarks.published_rows import FRONTIER_SCALING, RowSet, row_sets
from benchmarks.target import Target, within
from conf.units import TERA
from sweeps.table.prices import RowPrediction

SCALING_PERCENT = {"175B weak": 100.0, "1T weak": 100.0, "175B strong": 89.9, "1T strong": 87.1}


def frontier_targets() -> list[Target]:
    """The rates of three models and their order, and the efficiencies of four curves."""
    curves = row_sets(FRONTIER_SCALING, "curve")
    return [
        *_rate_targets(row_sets()["frontier-headline"]),
        *(
            within(f"Frontier {name} scaling (assumed batch)", SCALING_PERCENT[name], 3, _efficiency(rows), " %")
            for name, rows in curves.items()
            if name in SCALING_PERCENT
        ),
    ]


def _rate_targets(rows: RowSet) -> list[Target]:
    rates = {one.row["model"].removeprefix("GPT-"): _rate(one.prediction) / TERA for one in rows.comparisons}
    published = [float(one.row["tflops_per_gpu"]) for one in rows.comparisons]
    order = list(rates.values()) == sorted(rates.values(), reverse=True)
    shown = " > ".join(f"{name} {rate:.1f}" for name, rate in sorted(rates.items(), key=lambda r: -r[1]))
    return [
        *(
            within(f"Frontier {name}: hardware TFLOPS", wanted, 0.05 * wanted, rate)
            for (name, rate), wanted in zip(rates.items(), published, strict=True)
        ),
        Target("Frontier: order of the rates", "22B > 175B > 1T", shown, order, "another order"),
    ]


def _efficiency(rows: RowSet) -> float:
    """Percent of the baseline's rate per device that the scaled point keeps."""
    # Each curve of frontier_scaling.csv has two rows in this order.
    baseline, scaled = (_rate(row.prediction) for row in rows.priced)
    return 100 * scaled / baseline


def _rate(prediction: RowPrediction | None) -> float:
    assert prediction is not None, "a row of frontier_scaling.csv cannot be priced"
    return prediction.estimate.hardware_flops_per_second_per_device
