"""The stages that followed the trials: the progress of each chain, and the figures that its programs measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from conf.types.stage_spec import TRAIN, StageSpec
from results.analysis.findings.comparable import outcome_words
from results.render.section import NamedTable, Paragraph, ReportSubject, Section
from results.render.table import Table, number, text
from results.render.units import ABSENT, significant
from sweeps.reading import TrialReading
from sweeps.sweep import by_predecessor, chain_metrics, chain_of
from train_core.trial.measurement import Outcome

FIGURES = (
    "A figure is what the stage's own program wrote or printed, under the name of its stage; this package only reads"
    " it. A stage starts once the one before it has completed."
)


def section(subject: ReportSubject) -> Section | None:
    """A row for each trial that completed or failed; None of a sweep without later stages."""
    stages, tried = subject.sweep.record.spec.stages, [each for each in subject.results if not each.trial.repeat]
    if not stages or not tried:
        return None
    everything = [*subject.results, *subject.later]
    later, metrics = by_predecessor(everything), chain_metrics(everything)
    names = list(dict.fromkeys(name for figures in metrics.values() for name in figures))
    to_come = "cancelled" if subject.sweep.is_cancelled else "waits"
    rows = []
    for each in tried:
        chain, figures = {TRAIN: each, **chain_of(each, later)}, metrics.get(each.name, {})
        cells = [text(_words_for_stage(stage, chain, stages, to_come)) for stage in stages]
        cells += [
            number(significant(figures[name]), figures[name]) if name in figures else text(ABSENT) for name in names
        ]
        rows.append((text(each.label), *cells))
    columns = (subject.sweep.record.labels.heading, *stages, *names)
    table = Table(columns, tuple(rows), frozenset(names), choices=tuple(stages))
    blocks = (NamedTable("followed", table), Paragraph(FIGURES, is_note=True))
    return Section("followed", "What followed", "measured", _finding(stages, subject.later), blocks)


def _words_for_stage(
    stage: str, chain: Mapping[str, TrialReading], stages: Mapping[str, StageSpec], to_come: str
) -> str:
    """The outcome of a stage in words; for one that has not begun, the reason, or what is said of one to come."""
    if stage in chain:
        return outcome_words(chain[stage].outcome) if chain[stage].outcome else ABSENT
    before = chain.get(stages[stage].after)
    if before is None:
        return ABSENT
    if before.outcome is None or not before.outcome.is_final or before.outcome is Outcome.COMPLETED:
        return "not chosen" if stages[stage].best and before.outcome is Outcome.COMPLETED else to_come
    return f"needs {stages[stage].after}"


def _finding(stages: Mapping[str, StageSpec], later: Sequence[TrialReading]) -> str:
    counts = {stage: Counter(each.outcome for each in later if each.trial.stage == stage) for stage in stages}
    parts = []
    for stage, outcomes in counts.items():
        completed, total = outcomes[Outcome.COMPLETED], outcomes.total()
        parts.append(f"{stage} completed for {completed}{f' of {total}' if completed < total else ''}")
    return f"After the trials: {', '.join(parts)}."
