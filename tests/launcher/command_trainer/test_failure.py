"""How a program's failure is told: its outcome, its cause in one line, the rank at fault, and its last words."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from launcher.command_trainer.failure import failure_from_log, rank_failure
from launcher.command_trainer.job import _wait_for_the_first, run_here
from tests.launcher.command_trainer.conftest import STEPS, MakeTrial
from train_core.job.failures import failed_measurement
from train_core.trial.folder import TrialFolder
from train_core.trial.measurement import Fault, Measurement, Outcome

OF_TWO_RANKS = """\
step 1 loss 4.1 time 0.2 s
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 9, in <module>
[rank1]:   File "train.py", line 7, in <module>
[rank1]:     loss.backward()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 512.00 MiB is free.
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited
E1122 12:00:41.154000 1234 torch/distributed/elastic/multiprocessing/api.py:880] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/usr/lib/python3/torch/distributed/run.py", line 905, in main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_12:00:41
  host      : node7
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 1240)
  error_file: <N/A>
============================================================
"""
BANNER = """\
W1122 12:00:00.405000 1 site-packages/torch/distributed/run.py:793]
W1122 12:00:00.405000 1 site-packages/torch/distributed/run.py:793] *****************************************
W1122 12:00:00.405000 1 site-packages/torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable to be 1
W1122 12:00:00.405000 1 site-packages/torch/distributed/run.py:793] *****************************************
"""
CLOSING = """\
W1122 12:00:41.100000 1 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 9 closing signal SIGTERM
Traceback (most recent call last):
SystemExit: asked to end
"""
KILLED = """\
step 1 loss 4.1 time 0.2 s
E1122 12:00:41.154000 1234 torch/distributed/elastic/multiprocessing/api.py:880] failed (exitcode: -9) local_rank: 3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_12:00:41
  host      : node7
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 1240)
"""


@pytest.mark.parametrize("banner", ["", BANNER], ids=["", "banner"])
def test_of_several_ranks_the_one_that_did_not_merely_lose_a_peer_is_named(tmp_path: Path, banner: str) -> None:
    log = tmp_path / "log"
    log.write_text(banner + OF_TWO_RANKS)
    failure = failure_from_log(log, first_rank=0, exit_code=1, oom_kills=0)
    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert failure.blamed == 1
    assert failure.over_capacity_bytes == 1.5 * 2**30
    assert failure.cause.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert failure.traceback.splitlines()[2] == "    loss.backward()"


@pytest.mark.parametrize("said", ["", "step 1 loss 4.1\n"])
def test_torchruns_own_lines_are_not_the_programs_words(tmp_path: Path, said: str) -> None:
    log = tmp_path / "log"
    log.write_text(BANNER + said + CLOSING + KILLED.partition("\n")[2])
    failure = failure_from_log(log, first_rank=0, exit_code=1, oom_kills=0)
    last = "; its last line: step 1 loss 4.1" if said else " and left no word"
    assert (failure.cause, failure.blamed) == (f"the program was killed by SIGKILL{last}", 3)


@pytest.mark.parametrize(("oom_kills", "outcome"), [(0, Outcome.FAILED), (1, Outcome.OUT_OF_MEMORY)])
def test_a_killed_worker_is_out_of_memory_where_the_kernel_says_so(
    tmp_path: Path, oom_kills: int, outcome: Outcome
) -> None:
    log = tmp_path / "log"
    log.write_text(KILLED)
    failure = failure_from_log(log, first_rank=0, exit_code=1, oom_kills=oom_kills)
    assert (failure.outcome, failure.blamed) == (outcome, 3)
    assert "killed by SIGKILL; its last line: step 1 loss 4.1" in failure.cause


def ended(make_trial: MakeTrial, program: str, **values: object) -> Measurement:
    """How the program ended; values by their keys with double underscores for dots."""
    trial = make_trial(program, {key.replace("__", "."): value for key, value in values.items()})
    measurement = run_here(trial.path, time_limit_seconds=10)
    assert measurement.performance is None
    return measurement


def test_a_crash_of_the_program_is_its_own_exception(make_trial: MakeTrial) -> None:
    measurement = ended(make_trial, STEPS + "raise ValueError('bad data')")
    assert (measurement.outcome, measurement.cause) == (Outcome.FAILED, "ValueError: bad data")
    assert measurement.why is Fault.INPUT  # another attempt would end alike
    assert measurement.traceback is not None
    assert "program.py" in measurement.traceback
    assert measurement.failing_rank == 0


def test_memory_that_runs_out_is_no_failure(make_trial: MakeTrial) -> None:
    assert ended(make_trial, STEPS + "raise MemoryError").outcome is Outcome.OUT_OF_MEMORY


def test_colours_of_a_programs_exception_are_left_out(make_trial: MakeTrial) -> None:
    found = ended(make_trial, "raise ValueError('boom at \\x1b[31mlr\\x1b[0m')")
    assert (found.cause, "\x1b" in (found.traceback or "")) == ("ValueError: boom at lr", False)


def test_an_exit_without_an_exception_is_told_with_the_last_line(make_trial: MakeTrial) -> None:
    measurement = ended(make_trial, "print('usage: program'); raise SystemExit(3)")
    assert measurement.cause == "the program exited with code 3; its last line: usage: program"


def test_a_signal_is_named(make_trial: MakeTrial) -> None:
    measurement = ended(make_trial, "import os; os.kill(os.getpid(), 11)")
    assert measurement.cause == "the program was killed by SIGSEGV and left no word"


@pytest.mark.slow
def test_a_program_that_falls_silent_hangs(make_trial: MakeTrial) -> None:
    measurement = ended(make_trial, STEPS + "import time; time.sleep(60)", watch__hang_seconds=2)
    assert (measurement.outcome, measurement.why) == (Outcome.FAILED, Fault.HANG)
    assert measurement.cause.endswith("(watch.hang_seconds = 2)")
    assert measurement.cause.startswith("hangs: no line in its log for")
    assert measurement.traceback is not None
    assert measurement.traceback.endswith("memory 2.5 GiB")


def test_a_program_that_takes_too_long_is_ended(make_trial: MakeTrial) -> None:
    trial = make_trial(STEPS + "import time; time.sleep(60)")
    measurement = run_here(trial.path, time_limit_seconds=0.3)
    assert measurement.outcome is Outcome.TIMED_OUT
    assert measurement.cause == "the trial ran longer than its limit of 0.3 s"


def test_a_log_without_steps_is_told_with_the_patterns_that_found_nothing(make_trial: MakeTrial) -> None:
    patterns = {"line": r"it (?P<step>\d+) (?P<step_seconds>\S+)s", "loss": r"loss (?P<loss>\S+)"}
    measurement = ended(make_trial, "print('loss 3')", trainer__log__patterns=patterns)
    assert measurement.cause == "nothing measurable in its log: no line matches trainer.log.patterns.line"
    assert measurement.traceback == "loss 3"


@pytest.mark.parametrize(
    ("line", "named", "why"),
    [
        ("step 3 loss 4", ["seconds", "milliseconds"], Fault.UNTIMED),
        ("loss 4 time 3 ms", ["step"], Fault.UNREAD),
        ("loss 4", ["step", "seconds", "milliseconds"], Fault.UNREAD),
    ],
)
def test_only_patterns_that_would_have_told_what_is_missing_are_named(
    line: str, named: list[str], why: Fault, make_trial: MakeTrial
) -> None:
    measurement = ended(make_trial, f"print({line!r})")
    cause = measurement.cause
    assert measurement.why is why
    assert cause.removeprefix("nothing measurable in its log: no line matches ").split(", ") == [
        f"trainer.log.patterns.{name}" for name in named
    ]


def test_steps_without_times_are_nothing_to_measure(make_trial: MakeTrial) -> None:
    patterns = {"line": r"step (?P<step>\d+)( time (?P<step_seconds>\S+))?"}
    measurement = ended(make_trial, "print('step 4')", trainer__log__patterns=patterns)
    assert measurement.cause == "nothing measurable in its log: no line tells of a step together with its time"


def test_a_log_of_warm_up_steps_alone_says_so(make_trial: MakeTrial) -> None:
    measurement = ended(make_trial, "print('step 1 loss 3 time 1 s')")
    assert measurement.cause == "its log tells of 1 step, all within training.num_warmup_steps = 1"


def test_a_line_that_means_failure_counts_whatever_the_exit_code_is(make_trial: MakeTrial) -> None:
    program = STEPS + "print('[rank3]: loss is NaN, giving up')"
    measurement = ended(make_trial, program, trainer__log__errors=["loss is NaN"])
    assert (measurement.cause, measurement.failing_rank) == ("loss is NaN, giving up", 3)


def test_a_last_line_without_an_end_means_failure_too(make_trial: MakeTrial) -> None:
    program = STEPS + "import sys; sys.stdout.write('FATAL: loss is NaN')"
    measurement = ended(make_trial, program, trainer__log__errors=["FATAL"])
    assert (measurement.outcome, measurement.cause) == (Outcome.FAILED, "FATAL: loss is NaN")


def test_a_program_that_never_says_that_it_is_done_has_failed(make_trial: MakeTrial) -> None:
    measurement = ended(make_trial, STEPS, trainer__log__done="all done")
    assert measurement.cause.endswith("no line of its log matches trainer.log.done = 'all done'")


def test_a_program_that_is_not_there_is_one_sentence(make_trial: MakeTrial, tmp_path: Path) -> None:
    measurement = ended(make_trial, "", trainer__command=["no-such-program"])
    assert measurement.cause.startswith("trainer.command: 'no-such-program' cannot be started on ")
    (tmp_path / "train.py").write_text("print('loss 1')")
    measurement = ended(make_trial, "", trainer__command=["train.py"], trainer__working_dir=str(tmp_path))
    assert measurement.cause.endswith("(No such file or directory): a script is started by {python} in front of it")
    measurement = ended(make_trial, "", trainer__prefix=["no-such-container", "exec"])
    assert measurement.cause.startswith("trainer.prefix: 'no-such-container' cannot be started on ")
    measurement = ended(make_trial, "", trainer__working_dir=str(tmp_path / "nowhere"))
    assert measurement.cause.startswith("trainer.working_dir = ")


@pytest.mark.slow
def test_a_waiting_node_goes_on_by_what_stands_in_the_folder_whatever_the_file_server_calls_now(tmp_path: Path) -> None:
    trial = TrialFolder(tmp_path / "trial")
    trial.path.mkdir()
    failed = failed_measurement("f", rank_failure(Fault.CRASH, "earlier", "", 0), started=1.0)
    waiting = threading.Thread(target=_wait_for_the_first, args=(trial, failed), daemon=True)
    trial.write_measurement(failed)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive(), "what an earlier attempt left says nothing of this one"
    trial.write_measurement(failed.model_copy(update={"started": 2.0}))
    os.utime(trial.measurement, (time.time() - 3600,) * 2)
    waiting.join(30)
    assert not waiting.is_alive()
