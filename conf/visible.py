"""Text of people and programs as files and terminals may show it: what would act there is seen, and does nothing."""

from __future__ import annotations

import re

ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # ESC moves the cursor, BEL rings, CR overwrites its line; tab and line break stay
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # unseen, or turning the direction of what follows
    "\ud800-\udfff]"  # halves of a character, which no file in UTF-8 takes
)
IN_JSON = re.compile(r"(?<!\\)((?:\\\\)*)\\(u(?:00[01]|007f|00[89]|061c|200[bef]|202[89a-e]|206|feff))", re.IGNORECASE)
CODE = re.compile(r"((?<!`)`(?!`)[^`]*(?<!`)`(?!`))")


def visible(text: str) -> str:
    """The text with escapes such as `\\x1b` in place of control characters."""
    return ACTING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_in_json(text: str) -> str:
    r"""The same of the texts in a document in ASCII: what would be read as ESC is read as `\u001b`."""
    return IN_JSON.sub(r"\1\\\\\2", text)


def markdown_text(text: str) -> str:
    """Text of one line for Markdown: no tag, no link and no column; what stands in backticks stays."""
    parts = CODE.split(visible(" ".join(text.split())))
    return "".join(
        part if number % 2 else part.replace("<", "&lt;").replace("](", "]\\(") for number, part in enumerate(parts)
    )
