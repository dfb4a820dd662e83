"""Diagnoses as a page and as Markdown: the sections of the terminal's answer, in the form of a sweep's report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.commands.diagnose.answer import answer_sections, difference_section
from cli.commands.diagnose.lines import AnswerSection
from conf.errors import UsageError
from diagnose.diagnosis import Diagnosis
from diagnose.difference import RunDifference
from results.render.page import markdown, page
from results.render.section import Block, Head, NamedTable, Paragraph, Section
from results.render.table import Table, text
from train_core.trial.atomic import write_atomically

COLUMNS = ("what", "answer", "where")
NAMES = ("diagnosis.md", "diagnosis.html")


def write_page(diagnoses: Sequence[Diagnosis], differences: Sequence[RunDifference], folder: Path) -> list[Path]:
    """Write both files into the folder.

    Raises UsageError where they cannot be written.
    """
    sections = [
        _section(f"run-{number}", each, f"{diagnosis.run.name}: " if len(diagnoses) > 1 else "")
        for number, diagnosis in enumerate(diagnoses)
        for each in answer_sections(diagnosis)
    ]
    sections += [_section(f"difference-{i}", difference_section(each), "") for i, each in enumerate(differences)]
    names = ", ".join(dict.fromkeys(each.run.name for each in diagnoses))
    question = "What should it take, why does it not, and what is to change?"
    note = "Predicted and measured figures are told apart by their words."
    head = Head(f"Diagnosis of {names}", f"Trisweep diagnosis of {names}", question, note, f"Read from {names}.")
    paths = [folder / name for name in NAMES]
    for path, made in zip(paths, (markdown(head, sections, ()), page(head, sections, ())), strict=True):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, made)
        except OSError as error:
            problem = f"--report {folder}: {path.name} cannot be written: {error.strerror}"
            raise UsageError(problem, "Name a folder of yours.") from None
    return paths


def _section(name: str, shown: AnswerSection, of: str) -> Section:
    anchor = f"{name}-{'-'.join(shown.heading.lower().replace(',', '').split())}"
    rows = tuple((text(line.label.strip()), text(line.words), text(line.place)) for line in shown.lines)
    blocks: list[Block] = [NamedTable(f"{anchor}-lines", Table(COLUMNS, rows, frozenset()))]
    if shown.note:
        blocks.append(Paragraph(shown.note, is_note=True))
    return Section(anchor, of + shown.heading, shown.numbers_are, "", tuple(blocks))
