"""The code as it was when a sweep was submitted: editing the checkout while jobs are queued changes nothing."""

from __future__ import annotations

import compileall
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from py_compile import PycInvalidationMode

from train_core.process.git_sha import RECORDED, ROOT, git_sha

# A trial's job needs no more than these; results and cli stay on the login node.
PACKAGES = ("conf", "train_core", "sweeps", "launcher")
ALL_PACKAGES = (*PACKAGES, "results", "calibrate", "cli")
SUFFIXES = (".py", ".yaml", ".csv", ".html", ".js", ".css", ".md")


def snapshot_code(destination: Path, packages: Sequence[str] = PACKAGES) -> Path:
    """Copy the packages below `destination`, into a folder named after their content, and return that folder.

    The same code is copied and compiled once, so that not every rank compiles it. Code that changed gets a folder of
    its own, as queued jobs still need the old one.

    Raises:
        OSError: the folder cannot be written.
    """
    sources = _sources(ROOT, packages)
    target = destination / _digest(sources)
    if target.exists():
        return target
    destination.mkdir(parents=True, exist_ok=True)
    # The copy gets its name only when it is whole: an interrupted one would otherwise be taken for the code.
    with tempfile.TemporaryDirectory(dir=destination) as draft:
        for name, source in sources.items():
            copy = Path(draft, "code", name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        Path(draft, "code", RECORDED).write_text(git_sha() + "\n")
        # Python does not compare such compiled files with their sources. With thousands of ranks that start at once,
        # the comparison would be a burst of questions to the shared file system.
        compileall.compile_dir(Path(draft, "code"), quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        Path(draft, "code").replace(target)
    return target


def _sources(root: Path, packages: Sequence[str]) -> dict[str, Path]:
    """Files of the packages by their path relative to `root`, in a fixed order."""
    found = (path for package in packages for path in sorted((root / package).rglob("*")) if path.suffix in SUFFIXES)
    return {str(path.relative_to(root)): path for path in found}


def _digest(sources: dict[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in sources.items():
        digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
