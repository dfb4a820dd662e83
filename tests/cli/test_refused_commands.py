"""A command that is refused (exit code 2) has changed nothing, whatever it asks for and however the sweep stands.

Programs of ours stand in for Slurm, which remember what was submitted and refuse what is called `nosuch`.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import hydra
import pytest
from typer.testing import CliRunner

from cli.main import app
from conf.errors import EXIT_USAGE, TrisweepError
from launcher import provenance
from sweeps.folder.journal import Journal, Paused
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.composed import compose_choices_once
from tests.permissions import bound_by_permissions
from tests.results.conftest import finish, performance
from train_core.trial.measurement import Outcome

NUM_DRAWN = 4
"""Of the commands in each state, where not all cases are run."""

MOST_SECONDS = 60.0
"""A command that goes on with a sweep is interrupted then, as by Ctrl-C."""

TOOLS = {
    "sbatch": r"""
for script; do :; done
if grep -qe nosuch -e 'time=99999' "$script" || [ -e "$SLURM_STAND_IN/refuses" ]; then
  echo 'sbatch: error: Batch job submission failed: Invalid feature specification' >&2; exit 1
fi
name=$(sed -n 's/^#SBATCH --job-name=//p' "$script")
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$script")
number=$(cat "$SLURM_STAND_IN/number"); echo $((number + 1)) > "$SLURM_STAND_IN/number"
for element in $(seq 0 ${last:-0}); do
  echo "$number${last:+_$element}|PENDING Priority|N/A||$name|" >> "$SLURM_STAND_IN/jobs"
done
echo "Submitted batch job $number" """,
    "squeue": r"""
[ ! -e "$SLURM_STAND_IN/silent" ] || exit 1
for each; do case $each in --name=*) names=$(echo "${each#--name=}" | sed 's/,/|/g');; esac; done
grep -E "\|(${names:-.*})\|\$" "$SLURM_STAND_IN/jobs"; true""",
    "scancel": (
        '[ ! -e "$SLURM_STAND_IN/refuses" ] || { echo "scancel: error: Access/permission denied" >&2; exit 1; }\n'
        "sed -i 's/PENDING Priority|N.A/CANCELLED None|2026-01-01T00:00:00/' \"$SLURM_STAND_IN/jobs\""
    ),
    "scontrol": "echo 'ClusterName = alps'",
    "sacct": "true",
    "srun": "true",
}
POINTS = "sweep.points=[{parallel.world_size: 2, parallel.zero_stage: 1}]"
PROGRAM = "trainer.command=[python3,train.py]"
ON_SLURM = ("cluster=local", POINTS, "slurm.max_array_size=1")
SWEEP = ("sweep", "smoke", *ON_SLURM)
TRAIN = ("train", "--from-best", "smoke", "cluster=local", "training.num_steps=9")


@dataclass
class Bench:
    """A folder of sweeps in one state, and a copy of it to put it back from."""

    path: Path
    stand_in: Path
    before: dict[str, object] = field(default_factory=dict)

    @property
    def folder(self) -> SweepFolder:
        return SweepFolder(self.path / "runs" / "smoke-local")

    def give(self, *words: str) -> int:
        """The exit code of a command that is given here; an error of ours is raised."""
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        try:
            done = CliRunner().invoke(app, list(words))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if isinstance(done.exception, TrisweepError | PermissionError):
            return EXIT_USAGE
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code

    def keep(self) -> None:
        self.before = contents(self.path)
        shutil.copytree(self.path, self.path.with_name("kept"), symlinks=True)
        shutil.copytree(self.stand_in, self.path.with_name("kept-slurm"))

    def put_back(self) -> None:
        for place, kept in ((self.path, "kept"), (self.stand_in, "kept-slurm")):
            for each in place.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            shutil.copytree(self.path.with_name(kept), place, symlinks=True, dirs_exist_ok=True)
        os.utime(self.path)


def contents(path: Path) -> dict[str, object]:
    """All that is there but locks, which stay where somebody has once held them, and tokens, which are of no sweep."""
    found = (each for each in path.rglob("*") if not _is_apart(each))
    return {str(each.relative_to(path)): _content(each) for each in found if not _holds_such_alone(each)}


def _is_apart(path: Path) -> bool:
    return path.suffix == ".lock" or "tokens" in path.parts


def _holds_such_alone(path: Path) -> bool:
    return path.is_dir() and all(_is_apart(each) or _holds_such_alone(each) for each in path.iterdir())


def _content(path: Path) -> object:
    status = path.lstat()
    if path.is_symlink():
        return path.readlink()
    if not path.is_file():
        return status.st_mode
    # The times of trials' files tell when an attempt began.
    return status.st_mode, path.read_bytes(), status.st_mtime_ns if "trials" in path.parts else 0


State = Callable[[Bench], None]


def never_run(bench: Bench) -> None:
    pass


def submitted(bench: Bench) -> None:
    assert bench.give(*SWEEP) == 0


def planned(bench: Bench) -> None:
    """The command was killed as soon as it had written the record."""
    submitted(bench)
    shutil.rmtree(bench.folder.trials)
    bench.folder.journal.unlink()


def cancelled(bench: Bench) -> None:
    submitted(bench)
    assert bench.give("cancel", "smoke") == 0
    assert bench.give("status", "smoke") == 0


def cancelled_and_paused(bench: Bench) -> None:
    cancelled(bench)
    Journal(bench.folder.journal).append(Paused())


def paused(bench: Bench) -> None:
    submitted(bench)
    assert bench.give("pause", "smoke") == 0


def half_failed(bench: Bench) -> None:
    """One was measured, and one failed."""
    submitted(bench)
    first, second = Sweep.stored_in(bench.folder).runnable
    finish(bench.folder, first, performance(100.0))
    finish(bench.folder, second, (Outcome.FAILED, "it broke"))
    assert bench.give("advance", "smoke") == 0


def finished(bench: Bench) -> None:
    submitted(bench)
    for trial in Sweep.stored_in(bench.folder).runnable:
        finish(bench.folder, trial, performance(100.0))
    assert bench.give("advance", "smoke") == 0


def with_controller(bench: Bench) -> None:
    assert bench.give(*SWEEP, "controller=slurm") == 0


def with_allocation(bench: Bench) -> None:
    assert bench.give(*SWEEP, "launcher=allocation") == 0


def of_an_older_version(bench: Bench) -> None:
    """It knew of other events, and wrote less about a command."""
    half_failed(bench)
    journal = bench.folder.journal
    text = journal.read_text().replace(',"config_dirs":[]', "")
    journal.write_text('{"event":"unknown","time":1.0}\n' + text)


STATES: tuple[State, ...] = (
    *(never_run, planned, submitted, cancelled, cancelled_and_paused, paused, half_failed, finished),
    *(with_controller, with_allocation, of_an_older_version),
)


@contextmanager
def refusing(bench: Bench) -> Iterator[None]:
    """Slurm takes no job and ends none."""
    with _there(bench.stand_in / "refuses"):
        yield


@contextmanager
def silent(bench: Bench) -> Iterator[None]:
    with _there(bench.stand_in / "silent"):
        yield


@contextmanager
def _there(path: Path) -> Iterator[None]:
    path.touch()
    try:
        yield
    finally:
        path.unlink()


@contextmanager
def held(bench: Bench) -> Iterator[None]:
    """Another command works on the folder."""
    if not bench.folder.lock.parent.exists():
        yield
        return
    with bench.folder.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def read_only(bench: Bench) -> Iterator[None]:
    places = [each for each in (bench.path, *bench.path.rglob("*")) if not each.is_symlink()]
    modes = {each: each.stat().st_mode for each in places}
    with ExitStack() as after:
        for each, mode in modes.items():
            after.callback(each.chmod, mode)
            each.chmod(mode & ~0o222)
        with bound_by_permissions():
            yield


@contextmanager
def as_usual(bench: Bench) -> Iterator[None]:
    yield


Harm = Callable[[Bench], AbstractContextManager[None]]
WRONG = (
    "slurm.nosuch=1",
    "slurm.time_limit_minutes=soon",
    "slurm.time_limit_minutes=-5",
    "slurm.constraint=nosuch",
    "slurm.partition=nosuch",
    "slurm.account=nosuch",
    "slurm.qos=nosuch",
    "slurm.time_limit_minutes=99999",
    "+slurm.extra_sbatch.reservation=nosuch",
    "+slurm.extra_sbatch.job-name=mine",
    "+slurm.environment.9=x",
    "slurm.scheduler=pbs",
    "budget.gpu_hours=some",
    "budget.device_hours=-1",
    "budget.nosuch=1",
    "notify.command=https://hooks.example.org/t0ken",
    "model=nosuch",
    "cluster=nosuch",
    "training.num_steps=0",
    "sweep.max_trials=0",
    "trainer.command=[nosuch-program]",
    "trainer.log.patterns.step=(",
    "tracking.uri=nosuch://x",
    "output_dir=/proc/nosuch",
    "parallel.world_size=0",
    "search=nosuch",
    "x",
)
OF_SWEEPS = (
    ("controller=slurm", "controller.time_limit_minutes=2"),
    ("controller=slurm", "slurm.constraint=nosuch"),
    ("controller=slurm", "slurm.constraint=nosuch", "--retry-failed", "+slurm.environment.KEY=secret"),
    ("launcher=allocation", "launcher.time_limit_minutes=1"),
    ("launcher=allocation", "launcher.num_nodes=9999"),
    ("launcher=allocation", "slurm.constraint=nosuch"),
    ("slurm.constraint=nosuch", "--retry-failed"),
    ("slurm.constraint=nosuch", "--remeasure"),
    ("slurm.constraint=nosuch", "training.seed=7"),
    ("slurm.constraint=nosuch", "trainer.log.decimal=comma"),
    ("search=bayes", "slurm.constraint=nosuch"),
    ("--fail-fast", "0"),
    ("--here", "controller=slurm"),
    ("--dry-run", "slurm.nosuch=1"),
)
OF_OTHERS = (
    ("cancel", "smoke", "--trial", "nosuch"),
    ("cancel", "smoke", "--training", "nosuch"),
    ("cancel", "smoke", "tp2"),
    ("retry", "smoke"),
    ("retry", "smoke", "--trial", "nosuch"),
    ("retry", "smoke", "--failed", "slurm.nosuch=1"),
    ("retry", "smoke", "--failed", "slurm.constraint=nosuch"),
    ("retry", "smoke", "--failed", "budget.device_hours=-1"),
    ("retry", "smoke", "--trial", "zero1", "slurm.nosuch=1"),
    ("retry", "smoke", "--trial", "zero1", "slurm.constraint=nosuch"),
    ("retry", "smoke", "--trial", "zero1", "--trial", "nosuch"),
    ("advance", "smoke", "slurm.nosuch=1"),
    ("advance", "smoke", "slurm.constraint=nosuch"),
    ("advance", "nosuch"),
    ("pause", "smoke", "slurm.nosuch=1"),
    ("resume", "smoke", "slurm.nosuch=1"),
    ("pause", "smoke"),
    ("resume", "smoke"),
    ("status", "smoke", "slurm.nosuch=1"),
    ("logs", "smoke", "nosuch"),
    ("report", "smoke", "parallel.nosuch=1"),
    ("rerun", "smoke", "nosuch"),
    ("rerun", "smoke", "zero1", "slurm.constraint=nosuch"),
    ("rerun", "smoke", "zero1", "slurm.nosuch=1"),
    (*TRAIN, "slurm.constraint=nosuch"),
    (*TRAIN, "slurm.time_limit_minutes=1"),
    (*TRAIN, "slurm.nosuch=1"),
    (*TRAIN, "--name", "a/b"),
    ("metrics", "smoke", "--out", "/proc/nosuch"),
    ("reindex", "output_dir=nosuch"),
    ("calibrate", "cluster=local", "slurm=default", "slurm.constraint=nosuch"),
    ("calibrate", "cluster=local", "slurm=default", "slurm.time_limit_minutes=99999"),
    ("calibrate", "smoke", "--apply"),
    ("init", "smoke", "--like", "nosuch"),
    ("doctor", "slurm.nosuch=1"),
)
HARMS: tuple[Harm, ...] = (refusing, silent, held, read_only)
REFUSED = ("slurm.constraint=nosuch", "slurm.time_limit_minutes=99999")
HARMED = (
    SWEEP,
    (*SWEEP, "--retry-failed", "slurm.qos=debug"),
    (*SWEEP, "controller=slurm"),
    (*SWEEP, "launcher=allocation"),
    ("cancel", "smoke"),
    ("cancel", "smoke", "--trial", "zero1"),
    ("retry", "smoke", "--failed"),
    ("retry", "smoke", "--trial", "zero1"),
    ("advance", "smoke"),
    ("pause", "smoke"),
    ("resume", "smoke"),
    TRAIN,
)
COMMANDS: tuple[tuple[tuple[str, ...], Harm], ...] = (
    *(((*SWEEP, wrong), as_usual) for wrong in WRONG),
    *(((*SWEEP, *wrong), as_usual) for wrong in OF_SWEEPS),
    *((words, as_usual) for words in OF_OTHERS),
    *((words, harm) for words in HARMED for harm in HARMS),
    *((("rerun", "smoke", "zero1", "cluster=local"), harm) for harm in (refusing, read_only)),
)


def _stand_in(folder: Path) -> None:
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "number").write_text("12\n")
    (folder / "state" / "jobs").touch()
    for name, script in TOOLS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


def _small_checkout(folder: Path) -> Path:
    """Code that no job runs here, of few files to copy."""
    (folder / "checkout" / "launcher").mkdir(parents=True)
    (folder / "checkout" / "launcher" / "a.py").write_text("A = 1")
    return folder / "checkout"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    tools, path = tmp_path / "tools", tmp_path / "at"
    _stand_in(tools)
    path.mkdir()
    (path / "train.py").touch()
    monkeypatch.chdir(path)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("SLURM_STAND_IN", str(tools / "state"))
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(provenance, "ROOT", _small_checkout(tmp_path))
    monkeypatch.setattr(hydra, "compose", compose_choices_once)
    return Bench(path, tools / "state")


def _drawn(state: State) -> list[tuple[tuple[str, ...], Harm]]:
    """Some, and in one state those that have once changed something."""
    drawn = random.Random(state.__name__).sample(COMMANDS, NUM_DRAWN)
    found = {"rerun", "train", "calibrate", "retry"} if state is half_failed else set()
    return [*drawn, *((words, harm) for words, harm in COMMANDS if words[0] in found and words[-1] in REFUSED)]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_refused_command_has_changed_nothing(bench: Bench, state: State, request: pytest.FixtureRequest) -> None:
    state(bench)
    bench.give("status", "smoke")
    bench.keep()
    draws = COMMANDS if request.config.getoption("--all-cases") else _drawn(state)
    changed, num_refused = list[str](), 0
    for words, harm in draws:
        with harm(bench):
            code = bench.give(*words)
        num_refused += code == EXIT_USAGE
        now = contents(bench.path)
        if now != bench.before:
            if code == EXIT_USAGE:
                differing = sorted(name for name in now | bench.before if now.get(name) != bench.before.get(name))
                changed.append(f"{' '.join(words)} ({harm.__name__}): {differing}")
            bench.put_back()
            bench.before = contents(bench.path)
    assert not changed, "\n".join(changed)
    assert num_refused > len(draws) / 3


def test_a_paused_sweep_that_was_cancelled_is_resumed_and_told_how_it_begins_again(bench: Bench) -> None:
    """Its own command is refused while it is paused."""
    cancelled_and_paused(bench)
    said = CliRunner().invoke(app, ["resume", "smoke"])
    assert said.exit_code == 0
    assert "Resumed.\nSweep smoke is cancelled. To begin it again, give" in said.output
    assert bench.give("resume", "smoke") == EXIT_USAGE
    assert bench.give(*SWEEP) == 0
