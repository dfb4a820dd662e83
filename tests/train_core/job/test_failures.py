"""Which exception means what, and who is the culprit."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import tracemalloc
from pathlib import Path

import pytest
import torch
from torch.distributed import DistBackendError

from conf.errors import ConfigError, TrainingError, UsageError
from train_core.job.failures import failed_measurement, failure_of, first_cause, over_capacity_bytes, silent_failure
from train_core.trial.measurement import Fault, Outcome, RankFailure


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
    raised = TrainingError("it diverged", "Mend it.", blamed, suspects_device=True, node="n2")
    told = failure_of(0, pickle.loads(pickle.dumps(raised)))
    assert (told.rank, told.blamed, told.cause) == (0, blamed, "it diverged. Mend it.")
    assert (told.fault, told.node) == (Fault.HARDWARE, "n2")
    assert failure_of(0, UsageError("this node lacks it", "Mend it.")).blamed == 0


@pytest.mark.parametrize(
    "consequence",
    [
        RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:9"),
        RuntimeError("Connection reset by peer"),
        DistBackendError("NCCL communicator was aborted"),
        RuntimeError("rank 1 failed: ValueError: mine"),
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


def test_a_path_with_the_words_of_a_lost_peer_makes_no_victim() -> None:
    own = failure_of(1, ConfigError("checkpoint.load", "/x/NCCL and gloo/nothing", "cannot be read", "Mend it."))
    measurement = failed_measurement("abc", own, 0.0)
    assert (measurement.failing_rank, measurement.nodes, measurement.cause) == (1, (own.node,), own.cause)
    lost = failure(0, "RuntimeError: Connection closed by peer", own.time - 1)
    assert first_cause([lost, own]) == own


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


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."), Fault.MEMORY),
        (ConfigError("data.path", "x", "is bad", "Mend it."), Fault.INPUT),
        (DistBackendError("NCCL error: unhandled system error"), Fault.HARDWARE),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Fault.HARDWARE),
        (RuntimeError("Connection reset by peer"), Fault.HARDWARE),
        (RuntimeError("The NVIDIA driver on your system is too old (found version 11040)"), Fault.HARDWARE),
        (RuntimeError("CUDA error: hardware stack error"), Fault.HARDWARE),
        (RuntimeError("Driver/library version mismatch"), Fault.HARDWARE),
        (RuntimeError("hipErrorInsufficientDriver"), Fault.HARDWARE),
        (ConfigError("data.path", "/data/out of memory/x.txt", "is bad", "Mend it."), Fault.INPUT),
        (FileNotFoundError(2, "No such file or directory", "/home/u/hardware-team/x"), Fault.CRASH),
        (FileNotFoundError(2, "No such file or directory", "/home/u/nccl-runs/x"), Fault.CRASH),
        (AssertionError("/home/u/drivers/x"), Fault.CRASH),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/home/u/x"), Fault.DISK),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/u/x"), Fault.DISK),
        (ZeroDivisionError("division by zero"), Fault.CRASH),
        (KeyboardInterrupt(), Fault.KILLED),
    ],
)
def test_an_exception_tells_whose_fault_it_is(error: BaseException, fault: Fault) -> None:
    told = failure_of(0, error)
    assert (told.fault, bool(told.node)) == (fault, True)
    assert failed_measurement("abc", told, 0.0).why is fault


def test_a_full_disk_is_the_cause_of_a_rank_that_only_its_log_tells_of(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("OSError: [Errno 28] No space left on device: '/scratch/x'\nbye\n")
    said = failed_measurement("abc", silent_failure(0, 1, 0, log), 0.0)
    assert said.why is Fault.DISK
    assert said.cause == (
        "rank 0 exited with code 1 and left no traceback; it said: OSError: [Errno 28] No space left on device:"
        " '/scratch/x'. Make room there (space, inodes, a quota), and give the same command again"
    )


def test_an_error_where_data_are_read_is_of_the_data(tmp_path: Path) -> None:
    from train_core.data import tokens

    with pytest.raises(AttributeError) as caught:
        tokens.token_folder(None, None)  # type: ignore[arg-type]
    assert failure_of(0, caught.value).fault is Fault.INPUT


def test_a_signal_from_outside_is_told_from_a_crash(tmp_path: Path) -> None:
    log = tmp_path / "none"
    assert silent_failure(0, -signal.SIGKILL, 1, log).fault is Fault.MEMORY
    assert silent_failure(0, -signal.SIGKILL, 0, log).fault is Fault.KILLED
    assert silent_failure(0, -signal.SIGSEGV, 0, log).fault is Fault.CRASH
    assert silent_failure(0, 7, 0, log).fault is Fault.CRASH


@pytest.mark.parametrize(
    ("words", "gib"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 63.98 GiB of which 1.25 GiB"
            " is free. Including non-PyTorch memory, this process has 62.73 GiB memory in use.",
            1.25,
        ),
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 4.29 GiB already"
            " allocated; 10.00 MiB free; 4.46 GiB reserved in total by PyTorch)",
            10 / 1024,
        ),
        ("Tried to allocate 1024.00 KiB. GPU 0 has a total capacity of 1.00 GiB of which 2.00 MiB is free.", 0.0),
        ("slurmstepd: error: Step 7.0 exceeded memory limit (3221225472 > 1073741824), being killed", 2.0),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000000000 bytes.", None),
    ],
)
def test_how_much_memory_was_lacking_is_kept(words: str, gib: float | None) -> None:
    lacked = over_capacity_bytes(words)
    assert (lacked is None) if gib is None else (lacked is not None and lacked / 2**30 == pytest.approx(gib))
    told = failure_of(0, torch.OutOfMemoryError(words))
    assert failed_measurement("abc", told, 0.0).over_capacity_bytes == lacked


def test_of_a_log_of_many_megabytes_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(2**25)
        file.seek(0, 2)
        file.write(b"\nthe last word")
    tracemalloc.start()
    assert silent_failure(0, -signal.SIGABRT, 0, log).traceback.endswith("the last word")
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 2**21
