"""Assertions of all tests, rewritten once: of workers that start in a fresh checkout each would rewrite all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir


def rewrite_all(config: pytest.Config, folder: Path) -> None:
    """Leave beside the tests what pytest leaves there when it imports them. All cores take part."""
    files = [path for name in ("test_*.py", "conftest.py") for path in sorted(folder.rglob(name))]
    changed = [path for path in files if not is_rewritten(path)]
    if sys.dont_write_bytecode or not changed:
        return
    cores = os.cpu_count() or 1
    parts = [changed[core::cores] for core in range(cores)]
    processes = [get_context("fork").Process(target=_rewrite, args=(config, part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def is_rewritten(path: Path) -> bool:
    """Whether it seems so; pytest looks more closely when it imports the file."""
    kept = kept_at(path)
    return kept.exists() and kept.stat().st_mtime >= path.stat().st_mtime


def kept_at(path: Path) -> Path:
    return get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"


def _rewrite(config: pytest.Config, files: Sequence[Path]) -> None:
    for path in files:
        with suppress(OSError, SyntaxError):  # of which pytest itself will tell
            kept_at(path).parent.mkdir(parents=True, exist_ok=True)
            read, code = _rewrite_test(path, config)
            _write_pyc(config.stash[assertstate_key], code, read, kept_at(path))
