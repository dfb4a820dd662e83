"""Imported by the process from which commands are forked: what that has compiled, none of them compiles again."""

from __future__ import annotations

from tests.compiled_once import compile_all

compile_all()
