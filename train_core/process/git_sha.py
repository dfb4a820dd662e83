"""The identity of the code that runs: its commit, and a digest of what is measured."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pkgutil
import subprocess
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GIT = ("git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}")
"""Git in this checkout, which may belong to the colleague who installed it: Git refuses a folder of another user."""

FOLLOWED = ("axes.py", "shared_rules.py")
"""The modules of the cost model that say what the trainer does, too."""

RECORDED = "CODE"
"""The file in a snapshot's trainer that names its commit and digest, since a snapshot is no checkout."""


def git_sha() -> str:
    """The commit in twelve digits, `-dirty` where the checkout has changes; `unknown` without checkout and record."""
    if recorded := _recorded():
        return recorded[0]
    # --exclude=* leaves tags out, so that the commit itself is printed.
    command = [*GIT, "describe", "--always", "--exclude=*", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _recorded() -> list[str]:
    with contextlib.suppress(OSError):
        return (pkgutil.get_data("train_core", RECORDED) or b"").decode().split()
    return []


@lru_cache(maxsize=1)
def trainer_code() -> str:
    """Twelve digits of the trainer's code; the cost model, which is never measured, and the rest do not count."""
    if recorded := _recorded():
        return recorded[1]
    digest = hashlib.sha256()
    for path in (*sorted((ROOT / "train_core").rglob("*.py")), *(ROOT / "costs" / name for name in FOLLOWED)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def variables_of(code: Path = ROOT) -> dict[str, str]:
    """The variables by which a Python imports the packages in `code`, and others from where the user has them.

    Our packages have common names: somebody's own `conf` may be in the current folder, which PYTHONSAFEPATH leaves out,
    or in their PYTHONPATH, before which ours therefore comes.
    """
    path = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
