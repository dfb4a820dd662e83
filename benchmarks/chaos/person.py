"""A person who gives `trisweep` commands for a sweep of a program of their own, on the test cluster.

The program is a shell script that prints steps and notes what it did, beside the sweep's folder, so that whatever
becomes of that folder, its deeds are known. It can be held before its last step.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import entry_points
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chaos.aftermath import Aftermath, aftermath
from benchmarks.chaos.cluster import Cluster, command, wait_for
from benchmarks.chaos.judge import TRACEBACK, Deed, Judgement, Wanted, judge, read_deeds

IMPORTED = ("cli.main", "launcher.cancel", "launcher.sweep", "results.report.report", "results.mlflow.sweep_import")
"""Modules that a process of commands has before it forks them, so that none takes a second to begin."""

NAME = "chaos"
PROGRAM = """\
#!/bin/bash
here=$(dirname "$0") seed=$1
note() { echo "$1 $seed $SLURM_JOB_ID ${SLURM_PROCID:-0} $$ $SLURMD_NODENAME" >>"$here/executions.log"; }
note start
for step in 1 2 3 4; do
  sleep 0.2
  [ $step != 4 ] || note last
  while [ $step = 4 ] && [ -e "$here/hold" ]; do sleep 0.1; done
  echo "step $step loss $SLURM_JOB_ID time 0.$((100 + seed)) s"
done
[ ! -e "$here/fail-$seed" ] || exit 1
note complete
"""
SWEEP = """\
defaults:
  - override /model: tiny
  - override /cluster: local
  - override /trainer: command
cluster: {{num_nodes: 4}}
trainer:
  command: [{program}, "{{training.seed}}"]
  start: once
training: {{num_steps: 4, num_warmup_steps: 1}}
sweep:
  name: {name}
  question: Does it survive?
  baseline: {{training.seed: 1}}
  axes: {{training.seed: {seeds}}}
  points: []
  max_trials: 100
  published: []
  proxy: null
"""
PATIENCE_SECONDS, POLL_SECONDS = 240.0, 0.5
LIVE = ("PENDING", "RUNNING")


class Reply(NamedTuple):
    """What a command answered; the exit code is negative where a signal ended it."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return " ".join(f"{self.out} {self.err}".split())


class Person:
    """One repetition of a scenario, as commands of the command line alone.

    Attributes:
        folder: in which the commands are given.
        runs: the `output_dir`.
        name: of the sweep that commands are given for.
        variables: of the shell, for every command from now on.
        wanted: how the trials are to end; the keys are their names.
        num_faults: how often harm was done.
        chance: what a scenario draws; the same seed draws the same.
    """

    def __init__(self, folder: Path, cluster: Cluster, num_trials: int, seed: str = "") -> None:
        for module in IMPORTED:
            import_module(module)
        self.folder, self.cluster, self.chance = folder, cluster, random.Random(seed)
        self.runs, self.log = folder / "runs", folder / "executions.log"
        self.overrides = ["cluster=local", "slurm.time_limit_minutes=5"]
        self.wanted = Wanted({})
        self.variables: Mapping[str, str] = {}
        self.name = NAME
        self.num_faults, self.needed, self.complaints = 0, list[str](), list[str]()
        self._number = 0
        self._verdict: Judgement | None = None
        self.seeds = list(range(1, num_trials + 1))
        for each in (folder / "config" / "sweep", self.runs):
            each.mkdir(parents=True, exist_ok=True)
        program = folder / "program"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        (folder / "trisweep.yaml").write_text("config_dirs: [config]\n")
        self.describe(NAME, self.seeds)

    def describe(self, name: str, seeds: Sequence[int]) -> None:
        text = SWEEP.format(program=self.folder / "program", name=name, seeds=list(seeds))
        (self.folder / "config" / "sweep" / f"{name}.yaml").write_text(text)

    @property
    def sweep_folder(self) -> Path:
        return self.runs / f"{self.name}-local"

    def begin(self, *words: str) -> Reply:
        """Submit, and hold the programs before their last step."""
        self.hold()
        return self.give("sweep", *words, code=0)

    def sweep(self, *options: str) -> Reply:
        """Carry the sweep on by its command, which is kept for the page."""
        self.needed.append(" ".join(("sweep", *options)))
        return self.give("sweep", *options)

    def give(self, verb: str, *words: str, code: int | None = None, **variables: str) -> Reply:
        """Give a command for the sweep; a traceback is a complaint, and another exit code than the wanted is one."""
        said = self._ended(self.start(verb, *words, **variables))
        if code is not None and said.code != code:
            self.complain(f"{' '.join(said.words)} ended with {said.code}, not {code}: {said.text[-300:]}")
        return said

    def start(self, verb: str, *words: str, **variables: str) -> tuple[Any, Path, tuple[str, ...]]:
        """A command in a process of its own, which has imported everything already."""
        self._number += 1
        given = (verb, self.name, *self.overrides, *words)
        printed = self.folder / f"said-{self._number}"
        process = get_context("fork").Process(
            target=_trisweep, args=(given, self.folder, printed, {**self.variables, **variables})
        )
        process.start()
        return process, printed, given

    def killed(self, seconds: float, verb: str, *words: str) -> Reply:
        """The same, with SIGKILL after so long, if it has not ended by then."""
        running = self.start(verb, *words)
        running[0].join(seconds)
        with suppress(ProcessLookupError):
            os.kill(running[0].pid, signal.SIGKILL)
        return self._ended(running)

    def _ended(self, running: tuple[Any, Path, tuple[str, ...]]) -> Reply:
        process, printed, given = running
        process.join()
        texts = [printed.with_suffix(end).read_text() if printed.with_suffix(end).exists() else "" for end in ENDINGS]
        if any(TRACEBACK in text for text in texts):
            self.complain(f"a traceback of {' '.join(given)}: {texts[1].strip().splitlines()[-1:]}")
        return Reply(given, process.exitcode, *texts)

    def complain(self, what: str) -> None:
        self.complaints.append(what)

    def require(self, is_so: object, what: str) -> None:
        if not is_so:
            self.complain(what)

    def harm(self, action: Callable[..., object], *arguments: Any, **further: Any) -> None:
        self.num_faults += 1
        action(*arguments, **further)

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def release(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)

    def let_go(self) -> None:
        """Release jobs that were submitted with `hold`."""
        command("scontrol", "release", ",".join(sorted({job.split("_")[0] for job in self.jobs().values()})))

    def deeds(self, event: str = "start") -> list[Deed]:
        return read_deeds(self.log, event)

    def until(self, event: str, num: int, seconds: float = 120.0) -> None:
        """Wait for so many deeds of all jobs; that they do not come is a fault of the sweep."""
        try:
            wait_for(lambda: len(self.deeds(event)) >= num, seconds)
        except TimeoutError:
            raise AssertionError(f"{len(self.deeds(event))} of {num} programs came to {event}") from None

    def jobs(self) -> dict[int, str]:
        """The job of each seed, by the trials' own records; an element of an array has its own number."""
        found = {}
        for trial in (self.sweep_folder / "trials").iterdir():
            with suppress(OSError, ValueError, KeyError):
                seed = json.loads((trial / "trial.json").read_text())["experiment"]["training"]["seed"]
                found[seed] = json.loads((trial / "submission.json").read_text())["job_id"]
        return found

    def trial_of(self, seed: int) -> Path:
        for trial in (self.sweep_folder / "trials").iterdir():
            if json.loads((trial / "trial.json").read_text())["experiment"]["training"]["seed"] == seed:
                return trial
        raise AssertionError(f"no trial has the seed {seed}")

    def states(self) -> dict[str, str]:
        """What `status` says of every trial, whose cause is not asked."""
        said = self.give("status", "--json", code=0)
        try:
            document = json.loads(said.out)
            trials = [document["common"] | trial for trial in document["trials"]]
            return {trial["trial_id"]: trial["outcome"] for trial in trials}
        except (ValueError, KeyError):
            return {}

    def until_idle(self, seconds: float = 120.0) -> None:
        """Wait until none of the person's jobs is in the queue."""
        ids = ",".join(
            sorted({job.split("_")[0] for job in self.jobs().values()} | {deed.job for deed in self.deeds()})
        )
        try:
            wait_for(lambda: not ids or not command("squeue", "-h", f"--jobs={ids}", check=False).strip(), seconds)
        except TimeoutError:
            raise AssertionError(f"jobs go on: {command('squeue', '-h', f'--jobs={ids}')}") from None

    def finish(self, *options: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Give the sweep's own command until it starts nothing more and nothing is live."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            said = self.sweep(*options)
            # What was cancelled a moment ago still counts as running, and is submitted by the next command.
            is_idle = "0 trials submitted" in said.text and "0 queued or running already" in said.text
            if is_idle and not set(self.states().values()) & {*LIVE}:
                return
            options = ()
            time.sleep(POLL_SECONDS)

    def take_stock(self) -> None:
        """Judge now, because the folder is about to go; what was judged before is added."""
        table = self.folder / f"report-{self._number}"
        self.give("report", f"--out={table}", code=0)
        verdict = judge(self.sweep_folder, self.log, table / "report.csv", self.wanted)
        shown = self.states()
        for trial, outcome in shown.items():
            kept = self.sweep_folder / "trials" / trial / "measurement.json"
            told = json.loads(kept.read_text())["outcome"] if kept.exists() else "nothing"
            self.require(told == outcome, f"status says {outcome} of {trial}, whose file says {told}")
        self._verdict = verdict if self._verdict is None else self._verdict + verdict

    def aftermath(self, scenario: str, seconds: float) -> Aftermath:
        if self._verdict is None:
            self.take_stock()
        assert self._verdict is not None
        verdict = self._verdict + Judgement([], [], self.complaints)
        return aftermath(scenario, seconds, verdict, len(self.seeds), self.num_faults, self.needed)


ENDINGS = (".out", ".err")


def _trisweep(words: Sequence[str], folder: Path, printed: Path, variables: Mapping[str, str]) -> None:
    """In the process of a command: all that a shell would have set up for it."""
    os.setpgrp()
    for number, ending in enumerate(ENDINGS, start=1):
        os.dup2(os.open(printed.with_suffix(ending), os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(folder)
    os.environ.update(variables)
    sys.argv = ["trisweep", *words]
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    (script,) = entry_points(group="console_scripts", name="trisweep")
    script.load()()


@contextmanager
def disk(folder: Path, *options: str) -> Iterator[None]:
    """A small disk of its own in that place."""
    command("mount", "-t", "tmpfs", "-o", ",".join(options), "trisweep-chaos", str(folder))
    try:
        yield
    finally:
        command("umount", "--lazy", str(folder))
