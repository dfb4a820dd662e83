"""Makes the pages of the documentation that follow from the code, whenever the site is built: a hook of mkdocs.

The page of every command is as Typer makes it from the commands themselves, that of every key is made in `keys`. Apart
from these, `screenshots` makes pictures of a report.
"""

from __future__ import annotations

import html

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
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
PAGES = {"reference/commands.md": commands_page, "reference/keys.md": keys.page}
"""By its place in the site."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages to the site; mkdocs calls this."""
    for place, page in PAGES.items():
        files.append(File.generated(config, place, content=page()))
    return files
