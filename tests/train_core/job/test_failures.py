"""Which exception means what, and who is the culprit."""

from __future__ import annotations

import pickle
import signal
from pathlib import Path

import pytest
import torch
from torch.distributed import DistBackendError

from conf.errors import ConfigError, TrainingError, UsageError
from train_core.job.failures import failed_measurement, failure_of, first_cause, silent_failure
from train_core.measurement import Outcome, RankFailure


def failure(rank: int, cause: str, time: float) -> RankFailure:
    return RankFailure(rank=rank, outcome=Outcome.FAILED, cause=cause, traceback="", time=time)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_the_ways_to_run_out_of_memory(error: BaseException) -> None:
    assert failure_of(0, error).outcome is Outcome.OUT_OF_MEMORY


def test_any_other_exception_failed_with_its_type_and_first_line() -> None:
    told = failure_of(3, LookupError("no such thing\nand more"))
    assert (told.rank, told.outcome, told.cause) == (3, Outcome.FAILED, "LookupError: no such thing")


def test_a_message_for_people_is_told_as_it_is() -> None:
    assert (
        failure_of(0, ConfigError("data.path", "x", "is bad", "Mend it.")).cause == "data.path = 'x': is bad. Mend it."
    )


@pytest.mark.parametrize("blamed", [2, None])
def test_what_all_ranks_raise_together_knows_whom_to_blame(blamed: int | None) -> None:
    error = pickle.loads(pickle.dumps(TrainingError("it diverged", "Mend it.", blamed)))
    told = failure_of(0, error)
    assert (told.rank, told.blamed, told.cause) == (0, blamed, "it diverged. Mend it.")
    assert failure_of(0, UsageError("this node lacks it", "Mend it.")).blamed == 0


@pytest.mark.parametrize(
    "consequence",
    [
        RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:9"),
        RuntimeError("Connection reset by peer"),
        DistBackendError("NCCL communicator was aborted"),
    ],
)
def test_losing_a_peer_is_a_consequence_even_when_it_is_seen_first(consequence: Exception) -> None:
    seen_first = failure_of(0, consequence).model_copy(update={"time": 1.0})
    culprit = failure(1, "ValueError: mine", 2.0)
    assert first_cause([culprit, seen_first]) == culprit


def test_of_several_culprits_the_earliest_counts() -> None:
    earliest = failure(0, "ValueError: a", 1.0)
    assert first_cause([failure(1, "ValueError: b", 2.0), earliest]) == earliest


def test_when_all_lost_a_peer_the_earliest_counts() -> None:
    lost = "RuntimeError: Connection closed by peer"
    earliest = failure(1, lost, 2.0)
    assert first_cause([earliest, failure(0, lost, 3.0)]) == earliest


def test_a_victim_whose_culprit_nobody_knows_is_not_blamed() -> None:
    measurement = failed_measurement("abc", failure(1, "RuntimeError: Connection closed by peer", 2.0), 0.0)
    assert measurement.failing_rank is None
    assert measurement.cause.startswith("rank 1 ended as if it had lost another rank, and no other rank says more: ")
    own = failed_measurement("abc", failure(1, "ValueError: mine", 2.0).model_copy(update={"blamed": 1}), 0.0)
    assert (own.failing_rank, own.cause) == (1, "ValueError: mine")


def test_without_failures_there_is_no_cause() -> None:
    assert first_cause([]) is None


def test_a_kill_while_the_kernel_was_killing_for_memory_is_out_of_memory(tmp_path: Path) -> None:
    assert silent_failure(1, -signal.SIGKILL, 1, tmp_path / "none").outcome is Outcome.OUT_OF_MEMORY
    assert silent_failure(1, -signal.SIGKILL, 0, tmp_path / "none").outcome is Outcome.FAILED
    assert silent_failure(1, -signal.SIGSEGV, 1, tmp_path / "none").outcome is Outcome.FAILED


def test_an_abort_tells_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("terminate called after throwing an instance of 'std::bad_alloc'\n")
    told = silent_failure(0, -signal.SIGABRT, 0, log)
    assert told.outcome is Outcome.OUT_OF_MEMORY
    assert "bad_alloc" in told.traceback
