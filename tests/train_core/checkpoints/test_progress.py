"""A save that does not end is told from one that is slow, and the rank whose disk does not answer is named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch.distributed as dist

from tests.train_core.conftest import TrialOf
from train_core.checkpoints.writer import TOLD_BYTES, Progress, Summed
from train_core.job.trial import run_trial_here
from train_core.parallel.clock import Clock, Line, Operation
from train_core.trial.measurement import Outcome

HANGS_FOR_SECONDS = 600
TWO_RANKS = {
    "parallel.world_size": 2,
    "training.num_steps": 100_000,
    "checkpoint.every_steps": 2,
    "watch.hang_seconds": 3.0,
}


@pytest.mark.slow
def test_the_rank_whose_writer_hangs_is_named(trial_of: TrialOf, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Summed.write

    def hanging(item: Summed, content: Any) -> int:
        if dist.get_rank() == 1:
            threading.Event().wait(HANGS_FOR_SECONDS)
        return write(item, content)

    monkeypatch.setattr(Summed, "write", hanging)  # the ranks are forked, and inherit it
    measurement = run_trial_here(trial_of(TWO_RANKS).path)
    assert measurement.outcome is Outcome.FAILED
    assert measurement.failing_rank == 1
    assert "writing its share of a checkpoint" in measurement.cause, measurement.cause
    assert "(step 4)" in measurement.cause, "the training goes on until it needs the next save"
    assert "in hanging" in (measurement.traceback or ""), "where the writer is"


class Heard(Clock):
    """Keeps the waits that it is told of, and has what is waited for come forward meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.meanwhile: list[Callable[[], object]] = []

    def wait(self, operation: Operation, finish: Callable[[], Any]) -> Any:
        self.waits.append(str(operation))
        self.meanwhile.pop(0)()
        return super().wait(operation, finish)


def test_a_disk_that_is_slow_but_answers_is_waited_for_anew_each_time() -> None:
    clock, writing = Heard(), Future[None]()
    progress = Progress(Line("world", (0, 1), clock))
    progress.wrote(TOLD_BYTES - 1)  # before the training waits, nobody is told
    progress.work("writing")
    clock.meanwhile = [
        lambda: progress.wrote(1),
        lambda: progress.wrote(TOLD_BYTES),
        lambda: progress.meet("the end of all files"),
        lambda: writing.set_result(None),
    ]
    progress.wait(writing)
    assert clock.waits == ["writing", "writing", "writing", "the end of all files"]
    assert {line.name: line.num_started for line in clock.lines} == {"world": 0, "checkpoint": 1, "disk": 0}
