"""The identity of another program's code: a digest of the scripts that a command names and of what they import."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]+))", re.MULTILINE
)
"""The module, the names, or both in one, of an import."""
WORD = re.compile(r"\w[.\w]*")
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
    found, seen, waiting = set[Path](), set[tuple[str, Path]](), [script]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        named = {(name, folder) for name, own in _imported(path) for folder in own or (script.parent, working_dir)}
        waiting += [file for name, folder in named - seen for file in _files_of(name, folder)]
        seen |= named
    return found


def _imported(path: Path) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """The dotted names that a module imports, each with the folder that a relative one begins at.

    A line of a text that reads like an import counts as one, which is harmless; a syntax tree would take ten times as
    long, seconds of a large program.
    """
    if path.suffix != ".py":
        return
    for module, names, plain in IMPORT.findall(_content(path).decode(errors="replace")):
        dotted = module.lstrip(".")
        level = len(module) - len(dotted)
        folder = (path.parents[min(level, len(path.parents)) - 1],) if level else ()
        for name in WORD.findall(names or plain):
            yield f"{dotted}.{name}".lstrip("."), folder


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
