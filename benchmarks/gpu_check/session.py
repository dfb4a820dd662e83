"""One run of the check: the order of all checks, its lines on the terminal, its report, and its end."""

from __future__ import annotations

import shutil
import signal
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from benchmarks.gpu_check import faults, hardware, layouts, one_device, speed
from benchmarks.gpu_check.check import Check, Result, Runner, Verdict
from benchmarks.gpu_check.machine import CheckedMachine, Node, device_lines
from benchmarks.gpu_check.report import EVERYTHING, PAGE, Report, summary, write_report
from benchmarks.gpu_check.scale import CPU, GPU, SHARED, CheckScale
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.compose.load import compose_tree
from conf.errors import EXIT_FAILED, EXIT_INTERRUPTED

PARTS = (layouts.PART, faults.PART, hardware.PART, speed.PART)
FALLBACK_SIZE = (100, 24)
NAME_WIDTH, VERDICT_WIDTH, SECONDS_WIDTH = 40, 9, 6
MOST_LINES = 6
"""The most lines of a cause; all of it is in the report."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class CheckSession:
    """One run of the check.

    Attributes:
        out: the folder of the report.
        folder: of the jobs.
        deadline: in monotonic seconds.
    """

    machine: CheckedMachine
    node: Node
    out: Path
    folder: Path
    deadline: float
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.runner = Runner(self.machine.num_ranks, self.deadline, self._tell)
        self.bench = CheckWorkbench(
            kind=self.machine.kind,
            num_devices=self.machine.num_devices,
            num_ranks=self.machine.num_ranks,
            tree=self.node.tree,
            cpu_tree=compose_tree(["model=tiny", "cluster=local"]),
            narrow=self.node.narrow,
            scale=self._scale(),
            folder=self.folder,
            stopped=self.runner.stopped,
        )

    def _scale(self) -> CheckScale:
        if self.machine.kind == "cpu":
            return CPU
        return SHARED if self.machine.shares_devices else GPU

    def run(self, parts: Sequence[str]) -> int:
        self._print_head()
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
        before = {number: signal.signal(number, self._stop) for number in heard}
        try:
            for checks in rounds(self.bench, parts):
                self.runner.run(checks)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._end()

    def _print_head(self) -> None:
        for name, text in device_lines(self.machine).items():
            print(field_line(name, text))
        minutes = (self.deadline - self.started) / 60
        print(field_line("time", f"{minutes:g} minutes; Ctrl-C ends it earlier, and keeps the report"), flush=True)
        if self.node.remark:
            print(field_line("note", self.node.remark), flush=True)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.runner.stopped.set()
        self.bench.end_all()

    def _tell(self, result: Result) -> None:
        """Print the result, and bring the report up to date: whatever ends the check, it is there."""
        print(line_of(result), flush=True)
        self._write(is_whole=False)

    def _write(self, *, is_whole: bool) -> None:
        elapsed = time.monotonic() - self.started
        write_report(self.out, Report(self.machine, self.node.remark, self.runner.results, elapsed, is_whole))

    def _end(self) -> int:
        stopped = self.runner.stopped.is_set()
        self._write(is_whole=not stopped)
        failed = any(result.verdict is Verdict.FAILED for result in self.runner.results)
        print(f"\n{summary(self.runner.results)}.")
        print(f"Report: {self.out / PAGE}, with everything behind it in {EVERYTHING}.")
        if failed:
            print(f"Logs of all jobs: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        if stopped:
            return EXIT_INTERRUPTED
        return EXIT_FAILED if failed else 0


def rounds(bench: CheckWorkbench, parts: Sequence[str]) -> Iterator[list[Check]]:
    """All checks; what tells most about a machine comes first, should time run out.

    Checks of one round run beside each other; a round begins when the one before has ended.
    """
    known: layouts.References = {}
    if layouts.PART in parts:
        yield list(one_device.references(bench, known))
    second = list(one_device.variants(bench, known)) if layouts.PART in parts else []
    second += [*layouts.repeats(bench), *layouts.layouts(bench, known, 2)] if layouts.PART in parts else []
    yield [*second, *(faults.faults(bench) if faults.PART in parts else [])]
    if hardware.PART in parts:
        yield list(hardware.hardware(bench))
    if speed.PART in parts:
        yield list(speed.speeds(bench))
    if layouts.PART in parts:
        compared = one_device.comparisons_with_cpu(bench)
        yield [*compared, *one_device.compiled_layers(bench, known), *layouts.layouts(bench, known, 4)]
        yield list(layouts.layouts(bench, known, 8))


def width() -> int:
    return shutil.get_terminal_size(FALLBACK_SIZE).columns


def line_of(result: Result) -> str:
    """Verdict, seconds, name, and what was seen: behind the name where it fits, else below it."""
    head = f"{result.verdict:<{VERDICT_WIDTH}}{_seconds(result):>{SECONDS_WIDTH}}  {result.name}"
    whole = f"{head:<{VERDICT_WIDTH + SECONDS_WIDTH + 2 + NAME_WIDTH}}  {result.seen}"
    if len(whole) <= width():
        return whole
    return "\n".join([head, *_wrap(result.seen)])


def _seconds(result: Result) -> str:
    return "" if result.verdict is Verdict.LEFT_OUT else f"{result.seconds:.0f} s"


def _wrap(text: str) -> list[str]:
    indent = " " * (VERDICT_WIDTH + SECONDS_WIDTH + 2)
    lines = textwrap.wrap(text, width(), initial_indent=indent, subsequent_indent=indent)
    return lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], f"{indent}..."]


def field_line(name: str, text: str) -> str:
    """A line of the head: the name of a field and its value, wrapped."""
    return textwrap.fill(text, width(), initial_indent=f"{name:<11}", subsequent_indent=" " * 11)
