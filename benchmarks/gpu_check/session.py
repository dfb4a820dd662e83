"""One run of the check: its lines on the terminal, its report, and its end."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from benchmarks.gpu_check.check import Result, Runner, Verdict
from benchmarks.gpu_check.line import field_line, line_of
from benchmarks.gpu_check.machine import CheckedMachine, device_lines
from benchmarks.gpu_check.node import Node
from benchmarks.gpu_check.plan import rounds
from benchmarks.gpu_check.report import EVERYTHING, PAGE, Report, summary, write_report
from benchmarks.gpu_check.scale import CPU, GPU, SHARED, CheckScale
from benchmarks.gpu_check.workbench import CheckWorkbench
from conf.compose.load import compose_tree
from conf.errors import EXIT_FAILED, EXIT_INTERRUPTED

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
        """Make all checks, and return the exit code."""
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
