"""The work of each type of devices of a mixed job in a step, measured beside predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conf.plan.knobs import layers_in_short
from costs.flops_rates import BlockRates
from results.analysis.findings.comparable import display_name
from results.render.section import NamedTable, Paragraph, ReportSubject, Section
from results.render.table import Cell, Table, number, text
from results.render.units import gib, percent, tflops
from sweeps.ranking.points import ranking_of
from sweeps.reading import TrialReading

_READ_SO = (
    "Each type's rate is that of the model FLOPs that its own layers need, over the whole step and its devices; MFU is"
    " of its own peak. Memory is the fullest rank's. Where ranks shared a device nothing is predicted."
)


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if no measured trial ran on several types of devices."""
    table = blocks_table(subject.results)
    if table is None:
        return None
    finding = "What each type of devices reached of its own peak."
    blocks = (Paragraph(_READ_SO), NamedTable("device-types", table))
    return Section("device-types", "By type of devices", "measured and predicted", finding, blocks)


def blocks_table(results: Sequence[TrialReading]) -> Table | None:
    """A row for each block of every measured mixed trial, fastest trial first; None when no trial is mixed."""
    rows = [row for result in ranking_of(results) for row in _rows(result)]
    return Table.of(rows) if rows else None


def _rows(result: TrialReading) -> Iterator[dict[str, Cell]]:
    estimate, performance = result.trial.estimate, result.performance
    if performance is None:
        return
    if estimate is not None and not result.shares_devices:
        yield from (_row(result, "predicted", block) for block in estimate.blocks)
    yield from (_row(result, "measured", block) for block in performance.blocks)


def _row(result: TrialReading, kind: str, block: BlockRates) -> dict[str, Cell]:
    rate, peak = block.model_flops_per_second_per_device, block.peak_flops_per_second
    return {
        "layout": text(display_name(result)),
        "numbers are": text(kind),
        "cluster": text(block.cluster),
        "device": text(block.device),
        "layers": text(layers_in_short(block.layers_per_stage)),
        "ranks": number(str(block.num_ranks), block.num_ranks),
        "model TFLOPS": number(tflops(rate), rate),
        "peak TFLOPS": number(tflops(peak), peak),
        "MFU %": number(percent(block.model_flops_utilization), block.model_flops_utilization),
        "peak GiB": number(gib(block.peak_memory_bytes), block.peak_memory_bytes),
        "of GiB": number(gib(block.memory_capacity_bytes), block.memory_capacity_bytes),
    }
