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
    contents: dict[Path, bytes] = {}
    for script in _scripts(words, working_dir):
        contents |= _with_imports(script, working_dir)
    # In an order of contents: the same program in another folder is the same code.
    digests = sorted(hashlib.sha256(content).digest() for content in contents.values() if content)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:12] if digests else ""


def _scripts(words: Sequence[str], working_dir: Path) -> Iterator[Path]:
    for before, word in zip(("", *words), words, strict=False):
        if before == "-m":
            yield from _files_of(word, working_dir)
            yield from _files_of(f"{word}.__main__", working_dir)
        elif word.endswith(".py") or _content(working_dir / word).startswith(b"#!"):
            yield working_dir / word


def _with_imports(script: Path, working_dir: Path) -> dict[Path, bytes]:
    """The contents of the script and, of what it imports, of the files beside it or below the working folder."""
    contents, seen, waiting = dict[Path, bytes](), set[tuple[str, Path]](), [script]
    while waiting:
        path = waiting.pop()
        if path in contents:
            continue
        contents[path] = _content(path)
        imported = _imported(path, contents[path]) if path.suffix == ".py" else ()
        named = {(name, folder) for name, own in imported for folder in own or (script.parent, working_dir)}
        waiting += [file for name, folder in named - seen for file in _files_of(name, folder)]
        seen |= named
    return contents


def _imported(module: Path, content: bytes) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """The dotted names that a module imports, each with the folder that a relative one begins at.

    A line of a text that reads like an import counts as one, which is harmless; a syntax tree would take ten times as
    long, seconds of a large program.
    """
    for origin, names, plain in IMPORT.findall(content.decode(errors="replace")):
        dotted = origin.lstrip(".")
        level = len(origin) - len(dotted)
        folder = (module.parents[min(level, len(module.parents)) - 1],) if level else ()
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
