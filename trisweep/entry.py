"""The `trisweep` script."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE if (HERE / "train_core").is_dir() else HERE.parent
"""The folder of all packages: this one where a wheel is installed, the one above it in a checkout."""


def main() -> None:
    """Run a command."""
    sys.path.insert(0, str(HOME))
    from cli.entry import main as run

    run()
