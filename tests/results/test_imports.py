"""What the package costs to import."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("results.report.report, results.mlflow.sweep_import", {"torch", "mlflow", "submitit", "hydra", "launcher"}),
        ("results.mlflow.ui, results.terminal.tables", {"torch", "mlflow", "submitit", "hydra", "launcher", "pandas"}),
    ],
)
def test_importing_modules_leaves_out_what_they_do_not_need_yet(modules: str, absent: set[str]) -> None:
    program = f"import sys, {modules}; print(*sorted(name for name in sys.modules if '.' not in name))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "results" in loaded
    assert not absent & set(loaded)
