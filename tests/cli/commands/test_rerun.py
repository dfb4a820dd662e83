"""`trisweep rerun`: one trial again, by hand or beside its sweep."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from cli.commands.rerun import _document
from tests.cli.conftest import Command
from tests.messages import said
from tests.results.conftest import performance


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """The measured sweep in a folder of its own, which keeps its snapshot of the code."""
    shutil.copytree(finished / "runs", tmp_path / "runs")
    return tmp_path


@pytest.mark.slow
def test_a_trial_runs_again_with_its_own_code_and_comes_to_the_same_losses(copy: Path, trisweep: Command) -> None:
    before = {path: path.read_bytes() for path in (copy / "runs/smoke-local").rglob("*") if path.is_file()}
    done = trisweep("rerun", "smoke", "tp2-pp1", "--json", cwd=copy)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["document"], document["same_losses"]) == ("rerun", True)
    assert document["code"].startswith(str(copy / "runs/smoke-local/code"))
    seconds = document["numbers"]["step_seconds"]
    assert seconds["ratio"] == pytest.approx(seconds["measured_again"] / seconds["measured_before"])
    assert Path(document["folder"], "measurement.json").exists()
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize(
    ("steps", "losses", "same"),
    [((1, 2, 4), (3.0, 2.5, 2.0), True), ((1, 2, 4), (3.0, 2.5, 2.1), False), ((), (), None)],
    ids=["the same", "another last loss", "no loss"],
)
def test_losses_are_compared_of_the_steps_that_both_have_on_record(
    steps: tuple[int, ...], losses: tuple[float, ...], same: bool | None
) -> None:
    unrecorded = tuple(step for step in (1, 2, 3, 4) if step not in steps)
    whole, interrupted = (
        Mock(performance=performance(1.0, losses=each, unrecorded_steps=lacking), metrics={})
        for each, lacking in (((3.0, 2.5, 2.2, 2.0), ()), (losses, unrecorded))
    )
    assert _document(interrupted, whole, Mock())["same_losses"] is same


def test_a_trial_that_never_ran_is_refused(copy: Path, trisweep: Command) -> None:
    done = trisweep("rerun", "smoke", "infeasible", cwd=copy)
    said(done)
