"""A report as Markdown: every section with its tables; a plot is its caption, because its data is in a table nearby."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from results.report.section import Block, FactList, Head, Heading, KeyFigures, NamedTable, Paragraph, Section


def markdown(head: Head, sections: Sequence[Section], legend: Sequence[tuple[str, str]]) -> str:
    """The whole report as one text."""
    parts = [f"# {head.title}", head.question, head.note]
    for section in sections:
        parts += [_heading(section), section.finding, *(text for block in section.blocks for text in _block(block))]
        if section is sections[0] and legend:
            parts += ["Layouts: " + "; ".join(f"`{part}` {meaning}" for part, meaning in legend) + "."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(section: Section) -> str:
    return f"## {section.title}" + (f" ({section.numbers_are})" if section.numbers_are else "")


def _block(block: Block) -> Iterator[str]:
    match block:
        case Heading(text):
            yield f"### {text}"
        case Paragraph(text, is_caution):
            yield f"**Caution:** {text}" if is_caution else text
        case FactList(items):
            yield "\n".join(f"- {name}: {value}" for name, value in items)
        case KeyFigures(figures):
            yield "\n".join(
                f"- {figure.name}: **{figure.value}** ({', '.join(filter(None, (figure.numbers_are, figure.note)))})"
                for figure in figures
            )
        case NamedTable(_, table, folded_as):
            if folded_as:
                yield f"**{folded_as}**"
            yield table.markdown()
