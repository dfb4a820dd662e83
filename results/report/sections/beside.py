"""What was measured, held against what was predicted for the same trials."""

from __future__ import annotations

from results.report.blocks_part import blocks_table
from results.report.predicted_part import beside_table
from results.report.section import Block, Heading, NamedTable, Paragraph, ReportSubject, Section
from results.report.step_terms_part import step_terms_table
from sweeps.reading import ranked


def section(subject: ReportSubject) -> Section | None:
    """None where nothing that was measured had been predicted."""
    record, results = subject.sweep.record, subject.results
    blocks: list[Block] = []
    # Trials in the order of their rank, so that the tables below each other have equal rows.
    if table := beside_table(ranked(list(results))) if record.mode == "cluster" else None:
        blocks += [Paragraph(_ERRORS), NamedTable("beside", table)]
    if table := step_terms_table(results):
        blocks += [Heading("Where the step goes"), Paragraph(_TERMS), NamedTable("step-terms", table)]
    if table := blocks_table(results):
        blocks += [Heading("By type of devices"), Paragraph(_TYPES), NamedTable("blocks", table)]
    if not blocks:
        return None
    finding = "Every prediction beside the measurement of the same trial."
    return Section("beside", "Predicted against measured", "measured and predicted", finding, tuple(blocks))


_ERRORS = (
    "Errors in percent of the measurement; + means predicted too high. Where ranks shared a device the prediction,"
    " which gives every rank its own, has no step time to offer."
)
_TERMS = (
    "Measured: the rank with the most work of its own, medians over the timed steps, so that they add up only nearly."
    " Waits are what no work hides, waiting for later ranks included. Predicted, for the same trial: the slowest stage;"
    " its bubble is under pipeline, its wait for the slowest device under all ranks. Where ranks shared a device"
    " nothing is predicted."
)
_TYPES = (
    "Each type's rate is that of the model FLOPs that its own layers need, over the whole step and its devices; MFU is"
    " of its own peak. Memory is the fullest rank's. Where ranks shared a device nothing is predicted."
)
