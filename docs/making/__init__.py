"""Makes the pages of the documentation that follow from the code: `python -m docs.making`.

The page of every command is as Typer makes it from the commands themselves, that of every key is made in `keys`. Apart
from these, `screenshots` makes pictures of a report.
"""

from __future__ import annotations

import html
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from cli.main import app
from docs.making import keys


def commands_page() -> str:
    """Every command, with its arguments and options, as Markdown; options of all commands stand once."""
    command = typer.main.get_command(app)
    text: str = get_docs_for_click(obj=command, ctx=typer.Context(command), name="trisweep")
    head, *sections = html.unescape(text).replace("# `trisweep`", READER, 1).split("\n## ")
    lines = [section.splitlines() for section in sections]
    everywhere = [line for line in lines[0] if line.startswith("* `-") and all(line in each for each in lines)]
    shared = "\n".join(everywhere)
    own = ("\n".join([*(line for line in each if line not in everywhere), ""]) for each in lines)
    return "\n## ".join([f"{head}\nEach of them also takes\n\n{shared}\n", *own])


READER = """# Every command

This page is for users who look up an option."""
REFERENCE = Path(__file__).parents[1] / "reference"
PAGES = {REFERENCE / "commands.md": commands_page, REFERENCE / "keys.md": keys.page}
