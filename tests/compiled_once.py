"""The code that a sweep keeps, compiled once in a process: compiling takes most of the time of a first submission."""

from __future__ import annotations

from functools import cache
from types import CodeType

from launcher import provenance
from train_core.process.git_sha import ROOT


def compiled_once(source: bytes, path: str, mode: str, *, dont_inherit: bool) -> CodeType:
    """What `compile` returns; the same source is only given its path anew."""
    return _at(_compiled(source, mode, dont_inherit), path)


@cache
def _compiled(source: bytes, mode: str, dont_inherit: bool) -> CodeType:
    code: CodeType = compile(source, "", mode, dont_inherit=dont_inherit)
    return code


def _at(code: CodeType, path: str) -> CodeType:
    inner = tuple(_at(each, path) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=path, co_consts=inner)


def take_what_is_compiled() -> None:
    """Have this process compile each file of the code once, whatever the folder of the sweep."""
    setattr(provenance, "compile", compiled_once)  # noqa: B010 (in front of Python's own, by its name)


def compile_all() -> None:
    """Do it now, for the processes that are forked from this one."""
    take_what_is_compiled()
    for path in ROOT.glob("*/**/*.py"):
        if path.relative_to(ROOT).parts[0] in provenance.ALL_PACKAGES:
            _compiled(path.read_bytes(), "exec", True)
