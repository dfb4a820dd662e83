"""The identity of another program's code: a digest of the scripts that a command names and of what they import."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_BYTES = 2**20
"""What is larger is no script: an interpreter, or data."""


def program_code(words: Sequence[str], working_dir: Path) -> str:
    """Twelve digits of the program's scripts, and of the modules beside them that they import; empty without a script.

    Installed packages, and what a script imports by a name that it computes, do not count.

    Args:
        words: the command line. A script is a file in it that ends with .py or begins with `#!`, or `-m MODULE`.
        working_dir: where the program is started.
    """
    files = {path for script in _scripts(words, working_dir) for path in _with_imports(script, working_dir)}
    contents = [hashlib.sha256(content).digest() for path in sorted(files) if (content := _content(path))]
    # In an order of contents: the same program in another folder is the same code.
    return hashlib.sha256(b"".join(sorted(contents))).hexdigest()[:12] if contents else ""


def _scripts(words: Sequence[str], working_dir: Path) -> Iterator[Path]:
    for before, word in zip(("", *words), words, strict=False):
        if before == "-m":
            yield from _files_of(word, working_dir)
            yield from _files_of(f"{word}.__main__", working_dir)
        elif word.endswith(".py") or _content(working_dir / word).startswith(b"#!"):
            yield working_dir / word


def _with_imports(script: Path, working_dir: Path) -> set[Path]:
    """The script and, of what it imports, the files that lie beside it or below the working folder."""
    found, waiting = set[Path](), [script]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        for name, folder in _imported(path):
            folders = [folder] if folder else [script.parent, working_dir]
            waiting += [file for each in folders for file in _files_of(name, each)]
    return found


def _imported(path: Path) -> Iterator[tuple[str, Path | None]]:
    """The dotted names that a module imports, each with the folder that a relative one begins at."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(_content(path))
    except (SyntaxError, ValueError, RecursionError):
        return  # the program itself will say what is wrong
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[min(node.level, len(path.parents)) - 1] if node.level else None
            parts = [node.module] if node.module else []
            yield from ((".".join([*parts, alias.name]), folder) for alias in node.names)


def _files_of(name: str, folder: Path) -> Iterator[Path]:
    """The files that `import a.b.c` would run, as far as they are below the folder."""
    for part in name.split("."):
        if (file := folder / f"{part}.py").is_file():
            yield file
        folder = folder / part
        if (file := folder / "__init__.py").is_file():
            yield file


def _content(path: Path) -> bytes:
    """The content of a script; empty of what is none, or cannot be read."""
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= MOST_BYTES else b""
    except (OSError, ValueError):  # a word of a command need not be a path at all
        return b""
