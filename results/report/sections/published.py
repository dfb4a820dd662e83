"""What others have published, as they printed it."""

from __future__ import annotations

from collections.abc import Sequence

from results.published import PublishedFigure, chosen_figures
from results.report.section import Block, NamedTable, Paragraph, ReportSubject, Section
from results.report.table import Cell, ReportTable, number, text
from results.units import ABSENT

COLUMNS = (
    "model",
    "device",
    "devices",
    "layout",
    "batch",
    "TFLOPS per device",
    "FLOPs counted",
    "% of peak",
    "scaling",
    "standing",
    "source",
    "notes",
)
HARDWARE = (
    "The published TFLOPS count hardware FLOPs, recomputation included: hold them against a column of hardware TFLOPS,"
    " for the same model and device, and never against model TFLOPS."
)
UNCONFIRMED = "A row that is not marked as confirmed rests in part on inference or memory: see its notes."


def section(subject: ReportSubject) -> Section | None:
    """None where the sweep names no published figures (`sweep.published`).

    Raises:
        ConfigError: the sweep asks for a published figure that is unknown.
    """
    figures = chosen_figures(subject.sweep.record.spec.published)
    table = published_table(figures)
    if table is None:
        return None
    blocks: list[Block] = []
    if any(figure.flops_kind == "hardware" for figure in figures):
        blocks.append(Paragraph(HARDWARE, is_caution=True))
    if any(figure.confirmed != "yes" for figure in figures):
        blocks.append(Paragraph(UNCONFIRMED))
    finding = f"{len(figures)} published figure{'s' if len(figures) > 1 else ''}, as printed by the sources."
    return Section("published", "Published by others", "published", finding, (*blocks, NamedTable("published", table)))


def published_table(figures: Sequence[PublishedFigure]) -> ReportTable | None:
    """The figures as their sources print them."""
    rows = tuple(_row(figure) for figure in figures)
    return ReportTable(COLUMNS, rows, frozenset({"devices", "TFLOPS per device", "% of peak"})) if rows else None


def _row(figure: PublishedFigure) -> tuple[Cell, ...]:
    return (
        text(figure.model),
        text(figure.device),
        number(ABSENT if figure.num_devices is None else f"{figure.num_devices:,}", figure.num_devices),
        text(_layout(figure)),
        text(ABSENT if figure.global_batch_size is None else figure.global_batch_size),
        number(_as_printed(figure.tflops_per_device), figure.tflops_per_device),
        text(f"{figure.flops_kind} FLOPs" if figure.flops_kind else ABSENT),
        number(_as_printed(figure.percent_of_peak), figure.percent_of_peak),
        text(_scaling(figure)),
        text(figure.standing),
        text(f"{figure.source}, arXiv {figure.arxiv}, {figure.where}"),
        text(figure.notes),
    )


def _as_printed(value: float | None) -> str:
    return ABSENT if value is None else f"{value:g}"


def _layout(figure: PublishedFigure) -> str:
    named = {
        "tp": figure.tensor_parallel_size,
        "pp": figure.pipeline_parallel_size,
        "dp": figure.data_parallel_size,
        "mb": figure.micro_batch_size,
    }
    parts = [f"{name}{size}" for name, size in named.items() if size is not None]
    parts += [figure.recompute] if figure.recompute else []
    return "-".join(parts) or ABSENT


def _scaling(figure: PublishedFigure) -> str:
    if figure.scaling_efficiency_percent is None:
        return ABSENT
    return f"{figure.scaling_kind} {_as_printed(figure.scaling_efficiency_percent)} %"
