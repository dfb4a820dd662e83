"""The reason why a program failed: outcome, cause and the rank at fault, from its log and its exit code."""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from conf.types.trainer_spec import TIMES
from conf.units import count_of
from launcher.command_trainer.figure_parser import FigureParser
from launcher.command_trainer.log_parser import StepParser
from launcher.command_trainer.pattern_advice import advice
from train_core.job.failures import (
    FULL_DISK,
    HARDWARE,
    OUT_OF_MEMORY,
    PEER_LOST,
    fault_of_signal,
    of_full_disk,
    over_capacity_bytes,
)
from train_core.process.machine import this_node
from train_core.trial.logs import MOST_LINES, last_lines, tail
from train_core.trial.measurement import Fault, Outcome, RankFailure

MAX_CAUSE = 300
MAX_ADVICE = 1000
"""The same of a cause that ends with patterns, of which a part would be none."""

LOSSES = ("loss", "held_out_loss")
OUTCOME_OF_FAULT = {Fault.MEMORY: Outcome.OUT_OF_MEMORY, Fault.TIME: Outcome.TIMED_OUT}
SPEAKER = re.compile(r"^\[(?:rank|default)(?P<rank>\d+)\]:\s?")
"""What torch, and torchrun with `--tee`, put before a rank's line."""

TRACEBACK = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*|$)")
OF_TORCHRUN = re.compile(r"^[EWI]\d{4} [\d:.]+ +\d+ .*(?:torch/distributed/|elastic/)")
OF_AN_END = re.compile(r"^E|(?:closing|death) signal")
"""Of torchrun's lines, those about its workers' end. Some of its versions begin the log with a line about threads."""

ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s+: (?P<rank>\d+) .*?exitcode\s+: (?P<code>-?\d+)", re.DOTALL
)


def failure_from_log(log: Path, first_rank: int, exit_code: int, oom_kills: int) -> RankFailure:
    """Conclude from a program's log and exit code, and the kernel's kills meanwhile, why it failed.

    The first rank is to blame where the log names none.

    Args:
        exit_code: negative for a signal.
    """
    text = tail(log)
    # torchrun knows which of its workers ended first and with which code, where the program itself may have said
    # nothing.
    root = ROOT_CAUSE.search(text)
    rank = int(root["rank"]) if root else first_rank
    code = int(root["code"]) if root else exit_code
    spoken, raised = _lines_and_exception(text)
    if raised is not None:
        speaker, cause, block = raised
        rank = speaker if speaker is not None else rank
    else:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        last = f"; its last line: {spoken[-1].strip()}" if spoken else " and left no word"
        cause, block = f"the program {how}{last}", "\n".join(spoken[-MOST_LINES:])
    fault = _fault(cause, "\n".join(spoken), code)
    if code == -signal.SIGKILL and oom_kills > 0:  # SIGKILL alone may have come from anybody
        fault, cause = Fault.MEMORY, f"{cause}; the kernel ended a process for lack of memory"
    lacking = over_capacity_bytes("\n".join(spoken)) if fault is Fault.MEMORY else None
    failure = rank_failure(fault, cause, block, rank).model_copy(update={"over_capacity_bytes": lacking})
    return of_full_disk(failure) if raised is None and fault is not Fault.MEMORY else failure


def _fault(cause: str, said: str, code: int) -> Fault:
    """Return the kind of failure, on which it depends whether another attempt is worth it."""
    if OUT_OF_MEMORY.search(said):
        return Fault.MEMORY
    if FULL_DISK.search(cause):
        return Fault.DISK
    if HARDWARE.search(cause) or PEER_LOST.search(cause):
        return Fault.HARDWARE
    killed = code < 0 and fault_of_signal(-code) is Fault.KILLED
    return Fault.KILLED if killed else Fault.INPUT  # its crashes are for whoever wrote it


def rank_failure(
    fault: Fault, cause: str, words: str, rank: int, *, blamed: bool = True, most: int = MAX_CAUSE
) -> RankFailure:
    """A failure, with its cause cut to one line of a table."""
    line = " ".join(cause.split())
    line = line if len(line) <= most else f"{line[: most - 3]}..."
    return RankFailure(
        rank=rank,
        outcome=OUTCOME_OF_FAULT.get(fault, Outcome.FAILED),
        cause=line,
        traceback=words,
        time=time.time(),
        blamed=rank if blamed else None,
        fault=fault,
        node=this_node(),
    )


def error_line(line: str, log: Path) -> RankFailure:
    """A line that means failure by `trainer.log.errors`."""
    speaker = SPEAKER.match(line)
    fault = Fault.MEMORY if OUT_OF_MEMORY.search(line) else Fault.INPUT
    rank = int(speaker["rank"]) if speaker else 0
    return rank_failure(fault, SPEAKER.sub("", line), last_lines(log), rank, blamed=speaker is not None)


def wrongly_read(book: StepParser, logs: Sequence[Path]) -> str:
    """Why what was read of a log is not what it says; empty of one that was read well, as far as can be seen."""
    if isinstance(book, FigureParser):
        return book.lack
    return miscounted(book) or misread(book) or without_loss(book, logs)


def miscounted(book: StepParser) -> str:
    """Why the steps of a log cannot be counted by the plan's; empty if they can."""
    plan, runs = book.experiment.training.num_steps, book.num_runs
    if runs > 1 and book.last_step > plan:
        return (
            f"its log tells of {book.last_step} steps, as their numbers begin anew {count_of(runs - 1, 'time')}, and "
            f"training.num_steps = {plan}: give training.num_steps={book.last_step}"
        )
    further = book.beyond if len(book.steps) < min(plan, book.num_beyond) else book.further
    if book.seeks_loss and further > plan:
        return (
            f"its log tells of step {further}, and training.num_steps = {plan}, whose loss is not that of the end:"
            f" give training.num_steps={further}, or have it make no more"
        )
    (step, times), ranks = max(book.repeats.items(), key=lambda item: item[1], default=(0, 0)), book.num_ranks
    if times >= max(ranks, 2):
        return (
            f"its log tells of step {step} {times + 1} times, more often than there are ranks ({ranks}), and nothing "
            "says in which epoch: have it print 'epoch N' before the step, and find N with a group (?P<epoch>...)"
        )
    return ""


def misread(book: StepParser) -> str:
    """Why a loss, or the times, of a log cannot be read; empty if nothing is unknown of what is sought."""
    wanted = (*(LOSSES if book.needs_loss else ()), *(TIMES if book.needs_time and not book.steps else ()))
    quantity = next((each for each in wanted if each in book.unread), None)
    if quantity is None:
        return ""
    unknown = book.unread[quantity]
    written, readings = f"its log writes {quantity} as {unknown.text!r}", [f"{each:g}" for each in unknown.readings]
    if readings:
        which = "trainer.log.decimal=comma" + (" or trainer.log.decimal=point" if len(readings) > 1 else "")
        return f"{written}, which may mean {' or '.join(readings)}: give {which}"
    where = ", ".join(f"trainer.log.patterns.{name}" for name in _finders(book, (quantity,)))
    return f"{written}, in an unknown notation: have it print a plain number, or correct {where}"


def unmeasured_failure(book: StepParser, logs: Sequence[Path]) -> RankFailure:
    """The program ended well, and its log tells of no step to time: which patterns should have found one."""
    silent, fault = list[str](), Fault.UNREAD
    sought = TIMES if book.needs_time else LOSSES
    for wanted in (("step",), sought):
        finders = _finders(book, wanted)
        if book.matched.isdisjoint(finders):
            # A log without steps may be that of a training that never began; this one has told of some.
            fault = Fault.UNREAD if silent or wanted != TIMES else Fault.UNTIMED
            silent += finders
    if book.steps:
        warmup, count = book.experiment.training.num_warmup_steps, len(book.steps)
        cause = f"its log tells of {count_of(count, 'step')}, all within training.num_warmup_steps = {warmup}"
    elif silent:
        cause = f"nothing measurable in its log: {_unmatched(book, silent, logs)}"
    else:
        what, plan = "time" if book.needs_time else "loss", book.experiment.training.num_steps
        cause = f"nothing measurable in its log: no line tells of a step together with its {what}"
        if book.beyond > plan:
            cause = f"the numbers of its steps, such as {book.beyond}, are beyond training.num_steps = {plan}"
    return rank_failure(fault, cause, last_lines(*logs), 0, blamed=False, most=MAX_ADVICE)


def silenced(failure: RankFailure | None, log: Path) -> RankFailure | None:
    """The failure of a program as the disk's, which was full while it ran; one with words of its own stays its own."""
    is_wordless = failure is not None and failure.fault is Fault.INPUT and not failure.traceback
    if failure is None or not (is_wordless or failure.fault in (Fault.UNREAD, Fault.UNTIMED)):
        return failure
    cause = f"the disk was full while it ran, so that its log {log} may lack what it printed ({failure.cause})"
    return failure.model_copy(update={"fault": Fault.DISK, "cause": cause})


def without_loss(book: StepParser, logs: Sequence[Path]) -> str:
    """Why a log whose loss is sought tells of none; empty if it does, or the pattern of a loss has matched."""
    finders = _finders(book, LOSSES)
    if not (book.seeks_loss and book.steps and book.matched.isdisjoint(finders)):
        return ""
    return f"no loss in its log: {_unmatched(book, finders, logs)}"


def _unmatched(book: StepParser, names: Iterable[str], logs: Sequence[Path]) -> str:
    """The patterns that match no line, and others that would."""
    keys = ", ".join(f"trainer.log.patterns.{name}" for name in dict.fromkeys(names))
    quantities: dict[str, Collection[str]] = {"step": ("step",), "loss": ("loss",)}
    quantities |= {"step_seconds": TIMES} if book.needs_time else {}
    missing = [name for name, wanted in quantities.items() if book.matched.isdisjoint(_finders(book, wanted))]
    hint = advice((line for log in logs for line in tail(log).splitlines()), missing)
    return f"no line matches {keys or 'any pattern'}" + (f". {hint}" if hint else "")


def _finders(book: StepParser, wanted: Collection[str]) -> list[str]:
    """The names of the patterns that look for one of these quantities."""
    return [
        name for name, text in book.log.patterns.items() if not re.compile(text).groupindex.keys().isdisjoint(wanted)
    ]


def _lines_and_exception(text: str) -> tuple[list[str], tuple[int | None, str, str] | None]:
    """The program's own lines, and of its exceptions the first that is not the loss of a peer, else the first.

    An exception is its rank, its last line and its traceback. The ranks' lines may stand between each other's.
    """
    # What torchrun says of its workers' end, and what stands below that, repeats it at most.
    own = list(takewhile(lambda line: not _is_of_workers_end(line), filter(str.strip, text.splitlines())))
    own = [line for line in own if not OF_TORCHRUN.match(line)]
    by_speaker: dict[int | None, list[str]] = defaultdict(list)
    for line in own:
        speaker = SPEAKER.match(line)
        by_speaker[int(speaker["rank"]) if speaker else None].append(SPEAKER.sub("", line))
    exceptions = [(rank, *raised) for rank, lines in by_speaker.items() for raised in _exceptions(lines)]
    culprits = [raised for raised in exceptions if not PEER_LOST.search(raised[1])]
    return own, next(iter([*culprits, *exceptions]), None)


def _is_of_workers_end(line: str) -> bool:
    is_of_torchrun = OF_TORCHRUN.match(line) is not None
    return "ChildFailedError" in line or (is_of_torchrun and OF_AN_END.search(line) is not None)


def _exceptions(lines: list[str]) -> list[tuple[str, str]]:
    """The last line and the whole of every traceback."""
    exceptions, start = [], None
    for index, line in enumerate(lines):
        if line.startswith(TRACEBACK):
            start = index
        elif start is not None and EXCEPTION.match(line):
            exceptions.append((line, "\n".join(lines[start : index + 1])))
            start = None
    return exceptions
