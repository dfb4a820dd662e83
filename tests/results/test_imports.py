"""What the package costs to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, results.mlflow.ui, results.tables.sweep_tables
print(*sys.modules)
import results.report.report, results.mlflow.sweep_import
print(*sys.modules)
"""


@pytest.mark.slow
def test_importing_modules_leaves_out_what_they_do_not_need_yet() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    for_tables, for_reports = (set(line.split()) for line in done.stdout.splitlines())
    assert "results.report.sections.knobs" in for_reports
    assert not {"torch", "mlflow", "submitit", "hydra", "launcher", "shap", "sklearn"} & for_reports
    assert "pandas" not in for_tables
