"""What each type of devices of a mixed job does in a step, measured beside predicted."""

from __future__ import annotations

from results.report.blocks_part import blocks_table
from results.report.section import NamedTable, Paragraph, ReportSubject, Section

_READ_SO = (
    "Each type's rate is that of the model FLOPs that its own layers need, over the whole step and its devices; MFU is"
    " of its own peak. Memory is the fullest rank's. Where ranks shared a device nothing is predicted."
)


def section(subject: ReportSubject) -> Section | None:
    """None where no measured trial ran on several types of devices."""
    table = blocks_table(subject.results)
    if table is None:
        return None
    finding = "What each type of devices reached of its own peak."
    blocks = (Paragraph(_READ_SO), NamedTable("device-types", table))
    return Section("device-types", "By type of devices", "measured and predicted", finding, blocks)
