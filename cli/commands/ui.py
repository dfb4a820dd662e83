"""`trisweep ui`: the MLflow UI on loopback."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import OverrideTexts, composition_of
from cli.output.console import console, print_unwrapped, shown_path
from conf.credentials import hide_credentials
from results.mlflow.follow import UnfinishedSweeps, followed_in_mlflow

Port = Annotated[int, typer.Option(help="Port on loopback.", min=1, max=65535)]


def ui(overrides: OverrideTexts = None, port: Port = 5000) -> None:
    """Open the MLflow UI on loopback, until Ctrl-C."""
    from results.mlflow.store import database_path
    from results.mlflow.ui import Links, serve_ui

    settings = composition_of(None, overrides).settings
    output_dir = Path(settings.output_dir).absolute()

    def show(links: Links) -> None:
        print_unwrapped(f"MLflow UI: {hide_credentials(links.table)}")
        if links.charts is not None:
            print_unwrapped(f"Compared:  {hide_credentials(links.charts)}")
        if links.report is not None:
            print_unwrapped(f"Report:    {hide_credentials(links.report)}")
        if settings.tracking.kind != "server":
            print_way_in(port)

    kind = settings.tracking.kind
    print_unwrapped(f"Starting the MLflow UI of {shown_path(output_dir) if kind == 'sqlite' else 'the ' + kind} ...")
    if kind == "server":
        serve_ui(settings.tracking, output_dir, port, show)
        return
    if kind == "sqlite" and not database_path(output_dir).exists():  # nobody has imported a sweep that Slurm runs
        UnfinishedSweeps(output_dir, settings.tracking).import_all()
    with followed_in_mlflow(output_dir, settings.tracking):
        serve_ui(settings.tracking, output_dir, port, show)


def print_way_in(port: int) -> None:
    """Print the way for a person signed in from another computer to a page that is served to this one alone."""
    from train_core.process.machine import this_user

    if "SSH_CONNECTION" in os.environ or shutil.which("sbatch"):
        user, host = this_user(), socket.gethostname()
        print_unwrapped("From your own computer, in another terminal, and then open the same address there:")
        print_unwrapped(f"  ssh -L {port}:127.0.0.1:{port} {user}@{host}")
    console.print("Ctrl-C ends it.")
