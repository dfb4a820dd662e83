"""`trisweep ui`: the MLflow UI on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import OverrideTexts, composed
from cli.console import console
from conf.credentials import hide_credentials

Port = Annotated[int, typer.Option(help="Port on loopback.", min=1, max=65535)]


def ui(overrides: OverrideTexts = None, port: Port = 5000) -> None:
    """Open the MLflow UI on loopback, until Ctrl-C."""
    from results.mlflow.ui import serve_ui

    settings = composed(None, overrides).settings
    console.print("Starting the MLflow UI ...")
    serve_ui(settings.tracking, Path(settings.output_dir).absolute(), port, _print_ui_link)


def _print_ui_link(link: str) -> None:
    console.print(f"MLflow UI: {hide_credentials(link)}  (Ctrl-C ends it)")
