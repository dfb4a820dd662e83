"""Slurm is asked no more often than is needed, and the more rarely the worse it answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.slurm.query import SlurmSilent, query_jobs
from launcher.slurm.query_cache import FRESH, MOST_SECONDS, CommandAnswer
from tests.launcher.conftest import Tools

COUNTING = 'echo asked >> "$(dirname "$0")/asked"; '


@pytest.fixture
def num_asked(tmp_path: Path) -> Callable[[], int]:
    asked = tmp_path / "tools" / "asked"
    return lambda: len(asked.read_text().splitlines()) if asked.exists() else 0


def answer(*, exit_code: int = 0, took: float = 0.1, age: float = 0.0) -> CommandAnswer:
    import time

    return CommandAnswer(asked=time.time() - age, took=took, exit_code=exit_code, said="", complained="")


def test_those_who_look_again_and_again_share_an_answer_and_others_ask(
    tools: Tools, num_asked: Callable[[], int]
) -> None:
    tools(squeue=f"{COUNTING} echo '7|RUNNING|N/A|n1|name|'", sacct="true")
    for _ in range(3):
        assert query_jobs(["7"], 30.0)["7"].name == "RUNNING"
    assert num_asked() == 1
    assert query_jobs(["7"]) == query_jobs(["7"], FRESH)
    assert num_asked() == 3
    query_jobs(["8"], 30.0)
    assert num_asked() == 4, "another question"


def test_a_slurm_that_fails_is_left_in_peace_and_nothing_is_concluded(
    tools: Tools, num_asked: Callable[[], int]
) -> None:
    tools(squeue=f"{COUNTING} exit 1", sacct="true")
    for _ in range(3):
        with pytest.raises(SlurmSilent):
            query_jobs(["7"], 30.0)
    assert num_asked() == 1


def test_the_wait_is_longer_after_a_failure_and_a_slow_answer_and_a_minute_at_most() -> None:
    assert answer(age=4).is_good_for(5.0)
    assert not answer(age=6).is_good_for(5.0)
    assert answer(age=6, exit_code=1).is_good_for(5.0)
    assert not answer(age=11, exit_code=1).is_good_for(5.0)
    assert answer(age=30, took=4).is_good_for(5.0)
    assert not answer(age=MOST_SECONDS + 1, exit_code=1).is_good_for(50.0)
    assert not answer(age=-60).is_good_for(5.0), "the clock was set back"
    assert not answer().is_good_for(FRESH)
