"""What others have published, as they printed it."""

from __future__ import annotations

from results.published import chosen_figures
from results.report.published_part import published_table
from results.report.section import Block, NamedTable, Paragraph, ReportSubject, Section

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
