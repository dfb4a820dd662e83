"""What a search that chooses its points one by one has learned."""

from __future__ import annotations

from results.report.section import ReportSubject, Section
from sweeps.history import History


def section(subject: ReportSubject) -> Section | None:
    """None where no search has asked for a trial: its points were all listed."""
    history = History.kept_in(subject.sweep.folder)
    if not history.asked:
        return None
    from results.report.blocks.search_course import course_section  # with Hydra, for which no other report has to wait

    return course_section(subject, history)
