"""`trisweep plan` in this process, and a job whose searches are short."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from cli.main import main
from cli.output.console import console

JOB = ("model=gpt-22b", "cluster=selene", "precision=bf16", "batch.global_batch_size=64", "parallel.world_size=16")
FEW = ("parallel.context_parallel_size=1", "parallel.recompute_every=1")
"""Of a search without these two axes a third or less of the time is left."""

GPT_22B = (*JOB, *FEW)
ON_A_NODE = (*GPT_22B, "parallel.world_size=8")
"""No ring spans nodes there, so that plans are in the order of the seconds that are printed."""
Plan = Callable[..., str]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Runs `trisweep plan` with the arguments and returns its output."""

    def run(*arguments: str, columns: int = 100) -> str:
        monkeypatch.setattr(console, "width", columns)
        monkeypatch.setattr(sys, "argv", ["trisweep", "plan", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert not ended.value.code, captured.err
        return captured.out

    return run


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Runs `trisweep plan` with arguments that it refuses, and returns what it says."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["trisweep", "plan", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert ended.value.code == 2
        assert captured.out == ""
        return " ".join(captured.err.split())

    return run
