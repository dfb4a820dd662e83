"""The packages are found from a checkout by any program, and never hide a module of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USE = "import trisweep; print(trisweep.plan.__name__)"


def run(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """In a Python that knows this checkout by PYTHONPATH, as an editable install does by a .pth file."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_to_import_it_loads_no_package_until_a_name_is_used(tmp_path: Path) -> None:
    code = "import sys, trisweep; print('conf' in sys.modules, 'plan' in dir(trisweep)); trisweep.nothing"
    done = run(code, tmp_path)
    assert done.stdout.split() == ["False", "True"]
    assert "module 'trisweep' has no attribute 'nothing'" in done.stderr


def test_a_folder_of_configuration_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("")
    done = run(USE, tmp_path)
    assert (done.returncode, done.stdout) == (0, "plan\n"), done.stderr


@pytest.mark.parametrize("before", ["", "import conf; "], ids=["found", "imported"])
def test_a_module_of_the_users_that_one_would_hide_is_named(before: str, tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text("")
    done = run(before + USE, tmp_path)
    assert done.returncode == 1
    assert f"ImportError: conf is {tmp_path}/conf.py, and Trisweep has a package of that name" in done.stderr
