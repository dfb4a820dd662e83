"""Imported by the process from which commands are forked: what it has compiled and loaded, none of them does again.

It loads what any command imports but `cli` itself, and no module that takes torch, MLflow or pandas with it, so that a
command that needs those still shows it (`tests/cli/test_imports.py`).
"""

from __future__ import annotations

import gc
from importlib import import_module
from pkgutil import walk_packages

from conf.compose.load import compose
from conf.overrides import Overrides
from tests.compiled_once import compile_all

LOADED_WHOLE = ("conf", "costs", "sweeps", "launcher", "results", "calibrate", "diagnose")
NOT_LOADED = {"launcher.command_trainer.huggingface", "results.analysis.knobs.forest", "results.report.report"}


def load_what_commands_import() -> None:
    for package in map(import_module, LOADED_WHOLE):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if module.name not in NOT_LOADED:
                import_module(module.name)
    for name in ("rich.progress", "scipy.optimize"):
        import_module(name)


compile_all()
load_what_commands_import()
compose(Overrides.parse(["sweep=smoke"]))  # parsers learn from the first text, and keep it
gc.freeze()  # what all of them have loaded, none looks through for garbage
