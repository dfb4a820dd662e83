"""The `trisweep` script, and how the packages are found that it and the Python face import."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE if (HERE / "train_core").is_dir() else HERE.parent
"""The folder of all packages: this one where a wheel is installed, the one above it in a checkout."""
PACKAGES = ("conf", "costs", "train_core", "rates", "sweeps", "launcher", "results", "calibrate", "diagnose", "cli")


def main() -> None:
    """Run a command."""
    sys.path.insert(0, str(HOME))
    from cli.entry import main as run

    run()


def find_packages() -> None:
    """Put the folder of all packages first in `sys.path`, for a program that has imports of its own.

    Raises ImportError where the program has a module of the same name as one of them: either would hide the other.
    """
    if sys.path[:1] == [str(HOME)]:
        return
    for name in PACKAGES:
        spec = find_spec(name)
        # A folder without Python in it, such as Hydra's usual conf/, has no origin and hides nothing.
        if spec is not None and spec.origin and not Path(spec.origin).resolve().is_relative_to(HOME):
            raise ImportError(
                f"{name} is {spec.origin}, and Trisweep has a package of that name, so that one would hide the other."
                " Rename that module, or use the `trisweep` command, which runs in a process of its own."
            )
    sys.path.insert(0, str(HOME))
