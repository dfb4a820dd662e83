"""What the package costs to import."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("results.report.report", {"torch", "mlflow", "submitit", "hydra", "launcher"}),
        ("results.mlflow.sweep_import", {"torch", "mlflow", "submitit", "hydra", "launcher"}),
        ("results.mlflow.ui", {"torch", "mlflow", "submitit", "hydra", "launcher", "pandas"}),
        ("results.terminal.tables", {"torch", "mlflow", "submitit", "hydra", "launcher", "pandas"}),
    ],
)
def test_importing_a_module_leaves_out_what_it_does_not_need_yet(module: str, absent: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted(name for name in sys.modules if '.' not in name))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "results" in loaded
    assert not absent & set(loaded)
