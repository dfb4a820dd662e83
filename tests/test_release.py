"""What the public forge runs is what stands here: workflows, Pythons, version and changelog agree; `make` names a wrong
PYTHON."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def workflow(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    return content


def test_every_python_that_the_project_names_is_tested_and_no_other() -> None:
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert workflow("tests.yml")["jobs"]["fast"]["strategy"]["matrix"]["python"] == named


def test_the_whole_job_runs_what_ci_runs() -> None:
    steps = workflow("tests.yml")["jobs"]["whole"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]


def test_the_version_has_a_dated_section_which_a_tag_publishes() -> None:
    version = PROJECT["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
    steps = workflow("release.yml")["jobs"]["release"]["steps"]
    (check,) = [step["run"] for step in steps if "changelog" in step.get("name", "")]
    notes = subprocess.run(
        ["bash", "-ec", check.replace("> notes.md", "")],
        cwd=ROOT,
        env={"GITHUB_REF_NAME": f"v{version}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert notes.returncode == 0
    assert notes.stdout.strip()
    assert "## [" not in notes.stdout


def test_a_python_that_is_not_there_is_named_as_such(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    command = ["make", ".venv/bin/python", "PYTHON=python3.99"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "PYTHON=python3.99: there is no such command" in done.stderr
    assert "is older" not in done.stderr
