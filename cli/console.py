"""The one console of all commands, their exit codes, and how a path is shown."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

FAILED_EXIT_CODE = 1
USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130

console = Console(highlight=False, soft_wrap=False)


def shown_path(path: Path) -> str:
    """Relative to where the user stands, if it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
