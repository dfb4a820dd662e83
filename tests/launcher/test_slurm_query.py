"""What Slurm's tools say, told by stand-ins for answers that a real Slurm gives only now and then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.slurm_query import SlurmSilent, query_jobs

Tools = Callable[..., None]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """tools(squeue="script", sacct="script")"""

    def install(**scripts: str) -> None:
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    return install


def test_an_array_cancelled_before_it_started_is_one_record_for_all_its_elements(tools: Tools) -> None:
    tools(squeue="echo '6|CANCELLED|2026-11-21T06:12:31'")
    assert {name: state.name for name, state in query_jobs(["6_0", "6_3"]).items()} == {
        "6_0": "CANCELLED",
        "6_3": "CANCELLED",
    }


def test_an_element_of_its_own_is_not_judged_by_the_rest_of_its_array(tools: Tools) -> None:
    tools(squeue="echo '6_0|RUNNING|N/A'; echo '6_[1-2]|PENDING|N/A'")
    assert {name: state.name for name, state in query_jobs(["6_0", "6_2"]).items()} == {
        "6_0": "RUNNING",
        "6_2": "PENDING",
    }


def test_a_job_is_unknown_only_when_both_tools_answered(tools: Tools) -> None:
    tools(squeue="true", sacct="true")
    assert query_jobs(["7"]) == {}
    tools(sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert query_jobs(["7"]) == {}


@pytest.mark.parametrize(
    "scripts",
    [
        {"squeue": "exit 1", "sacct": "true"},
        {"squeue": "true", "sacct": "echo 'slurmdbd: connection refused' >&2; exit 1"},
    ],
)
def test_a_tool_that_does_not_answer_proves_nothing(scripts: dict[str, str], tools: Tools) -> None:
    tools(**scripts)
    with pytest.raises(SlurmSilent):
        query_jobs(["7"])
