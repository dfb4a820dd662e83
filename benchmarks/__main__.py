"""Run every benchmark of this package, then print one summary: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.target import Target, print_targets


def benchmark_names() -> list[str]:
    """Modules of this package that have a `main`."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]
    return [name for name in names if hasattr(importlib.import_module(f"benchmarks.{name}"), "main")]


def run(names: list[str]) -> list[Target]:
    """Run the benchmarks one after another, and say which one is at work: together they take most of an hour."""
    found: list[Target] = []
    for number, name in enumerate(names, start=1):
        print(f"{number} of {len(names)}: {name} ...", file=sys.stderr, flush=True)
        found += importlib.import_module(f"benchmarks.{name}").main()
    return found


if __name__ == "__main__":
    known = benchmark_names()
    chosen = sys.argv[1:] or known
    if unknown := [name for name in chosen if name not in known]:
        sys.exit(f"no benchmark {', '.join(unknown)}. Known: {', '.join(known)}.")
    print_targets(run(chosen))
