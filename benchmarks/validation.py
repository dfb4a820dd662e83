"""What the cost model is held against: one section for each promise, with its targets, what was seen, and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.published_rows import FRONTIER_SCALING, RowSet, row_sets
from benchmarks.target import Target, at_least, at_most, figure, within
from conf.units import TERA
from results.score import Comparison, score
from sweeps.table.prices import PricedRow, RowPrediction

PERCENT = " %"
SCALING_PERCENT = {"175B weak": 100.0, "1T weak": 100.0, "175B strong": 89.9, "1T strong": 87.1}
FITTED_ON = {  # a cluster whose constants' source holds one of these words was fitted on rows of that set
    "sc21-table-1": ("2104.04473", "SC21"),
    "sc21-table-2": ("tables 1 and 2 of arXiv 2104.04473",),
    "sc21-figures": ("SC21 figures",),
    "bloom": ("BLOOM", "chronicles"),
    "frontier-memory": ("405287",),
    "frontier-headline": ("2312.12705", "Dash", "hardware TFLOPS of the 22B"),
    "torchtitan": ("torchtitan",),
    "llm-foundry": ("llm-foundry",),
}


@dataclass(frozen=True)
class Section:
    """One part of the report.

    Attributes:
        about: what the reader must know of the rows, and on what the constants behind them were fitted.
    """

    title: str
    about: str
    targets: tuple[Target, ...]
    rows: tuple[PricedRow, ...]


def sections() -> list[Section]:
    sets = row_sets()
    return [
        _megatron_table_1(sets["sc21-table-1"]),
        _megatron_table_2_and_bloom(sets["sc21-table-2"], sets["bloom"]),
        _bloom_memory(sets["bloom"]),
        _frontier_memory(sets["frontier-memory"]),
        _frontier_rates(sets["frontier-headline"]),
        _frontier_scaling(sets["frontier-scaling"], row_sets(FRONTIER_SCALING, "curve")),
        _further_table(
            "Megatron-LM SC21, figures (read off plots by a third party)", "sc21-figures", sets["sc21-figures"]
        ),
        *(
            _further_table(f"{name}, {table}", name, rows)
            for name in ("torchtitan", "llm-foundry")
            for table, rows in sets[name].tables().items()
        ),
    ]


def _megatron_table_1(rows: RowSet) -> Section:
    return Section(
        "Megatron-LM SC21, table 1",
        f"Ten models from 1.7B to 1T on A100. {_standing('sc21-table-1', rows)}",
        (_step_target("SC21 table 1", rows.comparisons, 3),),
        rows.priced,
    )


def _megatron_table_2_and_bloom(megatron: RowSet, bloom: RowSet) -> Section:
    both = [*megatron.comparisons, *bloom.comparisons]
    sweeps = {
        "SC21 table 2": megatron.comparisons,
        **{f"BLOOM, {name}": found for name, found in bloom.sweeps().items()},
    }
    return Section(
        "Megatron-LM SC21, table 2, and BLOOM's sweeps",
        f"SC21: {_standing('sc21-table-2', megatron)} The ZeRO-3 rows: fitted on, two constants of the trainer"
        f" megatron-deepspeed (train_core/costs/trainers/implementation.py). BLOOM: {_standing('bloom', bloom)}",
        (
            _step_target("SC21 table 2 and BLOOM", both, 6),
            _step_target("  SC21 table 2 alone", megatron.comparisons, None),
            _step_target("  BLOOM alone", bloom.comparisons, None),
            *(at_least(f"{name}: Spearman", 0.9, score(found).rank_correlation) for name, found in sweeps.items()),
        ),
        (*megatron.priced, *bloom.priced),
    )


def _bloom_memory(rows: RowSet) -> Section:
    found = score(rows.comparisons)
    return Section(
        "BLOOM's memory",
        "What nvidia-smi shows on the fullest node, beside all memory of the worst stage. Rows: the section above.",
        (
            at_most("BLOOM: memory, mean error", 6, _percent(found.memory_error), PERCENT),
            at_least("BLOOM: fits or not, right", 95, _percent(found.fits_right), PERCENT),
        ),
        (),
    )


def _frontier_memory(rows: RowSet) -> Section:
    return Section(
        "Frontier: memory of the 16 pipeline stages",
        "torch's maximum of allocated memory in the authors' log 405287 (175B, 128 GCDs). Its accumulation of 160"
        " micro-batches at micro-batch 1 makes 320 sequences a step. " + _standing("frontier-memory", rows),
        (at_most("Frontier stages: memory, mean error", 2, _percent(score(rows.comparisons).memory_error), PERCENT),),
        rows.priced,
    )


def _frontier_rates(rows: RowSet) -> Section:
    rates = {
        one.row["model"]: one.prediction.estimate.hardware_flops_per_second_per_device / TERA
        for one in rows.comparisons
    }
    published = {one.row["model"]: float(one.row["tflops_per_gpu"]) for one in rows.comparisons}
    order = list(rates.values()) == sorted(rates.values(), reverse=True)
    shown = " > ".join(
        f"{name.removeprefix('GPT-')} {rate:.1f}" for name, rate in sorted(rates.items(), key=lambda r: -r[1])
    )
    return Section(
        "Frontier: TFLOPS per GCD",
        "Hardware TFLOPS. The abstract confirms the rates; that the authors' scripts produced them is inferred, and the"
        " 1T's batch is assumed (see the rows' notes). " + _standing("frontier-headline", rows),
        (
            *(
                within(
                    f"Frontier {name.removeprefix('GPT-')}: TFLOPS", published[name], 0.05 * published[name], rate, ""
                )
                for name, rate in rates.items()
            ),
            Target("Frontier: order of the rates", "22B > 175B > 1T", shown, order, "another order"),
        ),
        rows.priced,
    )


def _frontier_scaling(published: RowSet, curves: Mapping[str, RowSet]) -> Section:
    return Section(
        "Frontier: scaling efficiency",
        "The abstract states efficiencies alone; devices and batches are assumptions (benchmarks/frontier_scaling.csv)."
        " The published figures are 100 % (weak) and 89 % and 87 % (strong) in the abstract.",
        tuple(
            within(f"Frontier {name} scaling (assumed batch)", SCALING_PERCENT[name], 3, _efficiency(rows), PERCENT)
            for name, rows in curves.items()
        ),
        tuple(row for rows in (*curves.values(), published) for row in rows.priced),
    )


def _further_table(title: str, name: str, rows: RowSet) -> Section:
    return Section(
        title,
        "A further table. What nobody fitted on is to be within 5 %, and within half of a constant rate's error. "
        + _standing(name, rows),
        (_step_target(title, rows.comparisons, None),) if rows.comparisons else (),
        rows.priced,
    )


def _step_target(what: str, comparisons: Sequence[Comparison], limit_percent: float | None) -> Target:
    """The mean error of the step time; beside it that of the one rate per device that suits these rows best."""
    found = score(comparisons)
    constant, seen = found.constant_error, _percent(found.step_error)
    remark = "" if constant is None else f"constant: {100 * constant:.2f}{PERCENT}"
    name = f"{what}: step time, mean error of {found.num_steps}"
    if limit_percent is None:
        return figure(name, seen, PERCENT, remark)
    return at_most(name, limit_percent, seen, PERCENT, remark)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _efficiency(rows: RowSet) -> float:
    """Percent of the baseline's rate per device that the scaled point keeps."""
    # Each curve of frontier_scaling.csv has two rows in this order.
    baseline, scaled = (_rate(row.prediction) for row in rows.priced)
    return 100 * scaled / baseline


def _rate(prediction: RowPrediction | None) -> float:
    assert prediction is not None, "a row of frontier_scaling.csv cannot be priced"
    return prediction.estimate.hardware_flops_per_second_per_device


def _standing(name: str, rows: RowSet) -> str:
    """Whether the constants of the clusters behind these rows were fitted on them, by the clusters' own word."""
    clusters = [row.prediction.configuration.setup.cluster for row in rows.priced if row.prediction]
    said = {one.name: one.efficiency.source for one in clusters}
    return " ".join(
        f"{'Fitted on' if any(word in source for word in FITTED_ON[name]) else 'Not fitted on'}: the constants of"
        f" {cluster} come from: {source}."
        for cluster, source in sorted(said.items())
    )
