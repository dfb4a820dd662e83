"""A command that says at its end which modules it has loaded that take seconds to import."""

from __future__ import annotations

import sys

import cli.main

HEAVY = ("torch", "mlflow", "pandas")
PREFIX = "loaded: "


def main() -> None:
    """Run the command, and print the names after its output."""
    try:
        cli.main.main()
    finally:
        print(PREFIX + " ".join(name for name in HEAVY if name in sys.modules))
