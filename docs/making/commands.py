"""The page of every command, with its arguments and options, as Typer makes it from the commands themselves."""

from __future__ import annotations

import html

import typer
from typer.cli import get_docs_for_click

from cli.main import app

NAME = "trisweep"
OPENING = f"# `{NAME}`"


def page() -> str:
    """The whole page as Markdown."""
    command = typer.main.get_command(app)
    text: str = get_docs_for_click(obj=command, ctx=typer.Context(command), name=NAME)
    return html.unescape(text).replace(OPENING, "# Every command", 1)
