"""`trisweep ui`: the MLflow UI on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import Overrides
from cli.console import console
from conf.load import load

Port = Annotated[int, typer.Option(help="Port on loopback.", min=1, max=65535)]


def ui(overrides: Overrides = None, port: Port = 5000) -> None:
    """Open the MLflow UI on loopback, until Ctrl-C."""
    from results.mlflow.ui import serve_ui

    settings = load(overrides or [])
    console.print("Starting the MLflow UI ...")
    serve_ui(settings.tracking, Path(settings.output_dir).absolute(), port, _print_ui_link)


def _print_ui_link(link: str) -> None:
    console.print(f"MLflow UI: {link}  (Ctrl-C ends it)")
