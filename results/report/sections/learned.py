"""The lessons of a search that chooses its points one by one."""

from __future__ import annotations

from results.report.section import ReportSubject, Section
from sweeps.folder.journal import History


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if no search has asked for a point: all were listed, even if some ran again."""
    history = History.kept_in(subject.sweep.folder)
    first_runs = {trial.trial_id for trial in subject.sweep.record.trials if not trial.repeat}
    if not first_runs.intersection(history.asked):
        return None
    from results.report.blocks.search_course import course_section  # with Hydra, for which no other report has to wait

    return course_section(subject, history)
