"""What commands load: those that a login node answers with wait for neither torch nor mlflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands.plan.conftest import FEW
from tests.cli.loaded_modules import PREFIX
from tests.forked_command import run_forked


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("plan", "175b"),
        ("plan", "175b", "--cfg"),
        ("plan", "22b", "--search", *FEW),
        ("status", "smoke"),
        ("cancel", "smoke"),
        ("sweep", "175b", "cluster=frontier", "--dry-run"),
        ("calibrate", "cluster=frontier", "--dry-run"),
    ],
    ids=" ".join,
)
def test_commands_of_a_login_node_import_neither_torch_nor_mlflow(
    arguments: tuple[str, ...], finished: Path, no_slurm: dict[str, str]
) -> None:
    done = run_forked(arguments, finished, no_slurm, "tests.cli.loaded_modules")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == PREFIX


@pytest.mark.slow
def test_a_rehearsal_imports_neither_and_answers_with_its_document(tmp_path: Path, no_slurm: dict[str, str]) -> None:
    done = run_forked(("rehearse", "model=tiny", "--json"), tmp_path, no_slurm, "tests.cli.loaded_modules")
    assert done.returncode == 0, done.stderr
    *document, loaded = done.stdout.splitlines()
    assert loaded == PREFIX
    assert json.loads("".join(document))["document"] == "rehearsal"


def test_help_and_completion_wait_neither_for_hydra_nor_for_numpy() -> None:
    """In a process of its own: others have loaded both for the next command."""
    code = (
        "import sys, cli.main\n"
        "print([name for name in ('conf.compose.load', 'hydra', 'numpy', 'sweeps', 'train_core')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_submitting_imports_neither_torch_nor_mlflow() -> None:
    """In a process of its own: what it needs of a Slurm is not here."""
    code = (
        "import sys, launcher.sweep, launcher.long_run, launcher.cancel, launcher.job, cli.output.progress\n"
        "print([name for name in ('torch', 'mlflow', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
