"""The code as it was when a sweep was submitted: editing the checkout while jobs are queued changes nothing."""

from __future__ import annotations

import hashlib
import os
import py_compile
import struct
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from py_compile import PycInvalidationMode

from train_core.process.git_sha import RECORDED, ROOT, git_sha

# A trial's job needs no more than these; results and cli stay on the login node.
PACKAGES = ("conf", "train_core", "sweeps", "launcher")
ALL_PACKAGES = (*PACKAGES, "results", "calibrate", "cli")
UNCHECKED = struct.pack("<L", 0b01)
"""How a compiled file says that it has its source's hash, which is not to be compared (PEP 552)."""

CHECKSUM_OF_FILES = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1"
"""For a shell in the folder. A job's own script asks so, before any of the code runs, with what every node has."""

SUFFIXES = (".py", ".yaml", ".csv", ".html", ".js", ".css", ".md")


def snapshot_code(destination: Path, packages: Sequence[str] = PACKAGES) -> Path:
    """Copy the packages below `destination`, into a folder named after their content, and return that folder.

    The same code is copied and compiled once, so that not every rank compiles it. Code that changed gets a folder of
    its own, as queued jobs still need the old one.

    Raises:
        OSError: the folder cannot be written.
    """
    sources = _sources(ROOT, packages)
    contents = {name: source.read_bytes() for name, source in sources.items()}
    target = destination / _digest(contents)
    if target.exists():
        return target
    destination.mkdir(parents=True, exist_ok=True)
    # The copy gets its name only when it is whole: an interrupted one would otherwise be taken for the code.
    with tempfile.TemporaryDirectory(dir=destination) as draft:
        for name, source in sources.items():
            copy = Path(draft, "code", name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(contents[name])
            if source.suffix == ".py":
                _compile(source, copy, contents[name])
        Path(draft, "code", RECORDED).write_text(git_sha() + "\n")
        Path(draft, "code").replace(target)
    return target


@cache  # every job array asks for it, and what replaces the code between two of them is not taken for it
def checksum_of_files(folder: Path) -> str:
    """The SHA-256 over the paths and contents of all files below a folder, as `CHECKSUM_OF_FILES` prints it.

    It covers what Python has compiled, which Python itself does not compare with the sources.
    """
    whole, names = hashlib.sha256(), (f"./{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file())
    for name in sorted(names, key=os.fsencode):
        content = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        whole.update(f"{content}  {name}\n".encode())
    return whole.hexdigest()


def _compile(source: Path, copy: Path, content: bytes) -> None:
    """Write the compiled file of a copy: that of its source, if Python has written one since, or else a new one.

    Python does not compare it with the copy. With thousands of ranks that start at once, the comparison would be a
    burst of questions to the shared file system.
    """
    code = _compiled_code(source)
    if code is None:
        # A module that cannot be compiled says so in the rank that needs it.
        py_compile.compile(str(copy), quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        return
    compiled = Path(cache_from_source(str(copy)))
    compiled.parent.mkdir(parents=True, exist_ok=True)
    compiled.write_bytes(MAGIC_NUMBER + UNCHECKED + source_hash(content) + code)


def _compiled_code(source: Path) -> bytes | None:
    """Return Python's compiled form of this file as it is now (the format is of PEP 552); None if there is none."""
    try:
        content, status = Path(cache_from_source(str(source))).read_bytes(), source.stat()
    except OSError:
        return None
    expected = struct.pack(
        "<4sLLL", MAGIC_NUMBER, 0, *(int(each) % 2**32 for each in (status.st_mtime, status.st_size))
    )
    return content[len(expected) :] if content.startswith(expected) else None


def _sources(root: Path, packages: Sequence[str]) -> dict[str, Path]:
    """Files of the packages by their path relative to `root`, in a fixed order."""
    paths = (path for package in packages for path in sorted((root / package).rglob("*")) if path.suffix in SUFFIXES)
    return {str(path.relative_to(root)): path for path in paths}


def _digest(contents: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}\0".encode() + content + b"\0")
    return digest.hexdigest()[:12]
