"""Whatever commands follow each other in a folder, all that was ever measured is there, unchanged and shown.

The commands are those of `trisweep sweep`, up to the place: trials measure in no time, and some of them fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from conf.errors import UsageError
from launcher.cancel import cancel_sweep
from launcher.control.composed_rules import rules_for
from launcher.control.loop import go_on
from launcher.control.orders import SweepCommand, SweepOrders, retry, retry_failed_trials
from launcher.control.workplace import Workplace
from launcher.folder_lock import lock_folder
from launcher.sweep import begin_sweep
from results.mlflow.sweep_content import sweep_runs
from sweeps.points.plan import plan_sweep
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.collected_table import collect
from tests.composed import composed
from tests.launcher.conftest import Silent
from tests.results.conftest import finish, performance
from train_core.trial.measurement import Outcome

COMMANDS = (
    (),
    (),
    ("batch.micro_batch_size=2",),
    ("parallel.zero_stage=1",),
    ("training.num_steps=5",),
    ("model.num_layers=4",),
    ("search=bayes", "search.space=listed", "search.min_gain=0"),
    ("search=bayes", "sweep.max_trials=4"),
    ("search=random", "sweep.max_trials=4"),
    ("search=planner",),
    ("search.max_rounds=2",),
    ("sweep.max_trials=2",),
)
SEEDS = range(8)
NUM_COMMANDS = 6


class Instant(Workplace):
    """Measures at once; every fifth trial fails. Whoever is killed is so between any two of its steps."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def read_trials(self, sweep: Sweep) -> list[TrialReading]:
        # Nothing runs between the steps of a command. What seems to was left by one that was killed while it measured,
        # of which a queue would tell the end; without it the sweep would wait for ever.
        for reading in sweep.read():
            if reading.outcome is Outcome.RUNNING:
                finish(sweep.folder, reading.trial, (Outcome.FAILED, "killed with its command"))
        return sweep.read()

    def start(self, sweep: Sweep, readings: Sequence[TrialReading]) -> list[str]:
        for reading in readings:
            time.sleep(0.002)
            sweep.prepare(reading.trial)
            fails = self.chance.random() < 0.2
            rate = performance(self.chance.uniform(50.0, 150.0))
            finish(sweep.folder, reading.trial, (Outcome.FAILED, "made so by the test") if fails else rate)
        return [reading.name for reading in readings]

    def end(self, readings: Sequence[TrialReading], outcome: Outcome, cause: str) -> None:
        raise AssertionError("nothing runs for longer than a moment")


def sweep_command(folder: SweepFolder, chance: random.Random, words: Sequence[str], *, remeasure: bool = False) -> None:
    asked = composed(["sweep=smoke", *words])
    record = plan_sweep(asked, proxy=False, git_sha="")
    rules = replace(rules_for(asked, record, on_slurm=False), max_resubmits=3)
    with lock_folder(folder):
        orders = SweepOrders(asked.overrides.texts, remeasure=remeasure)
        conductor = begin_sweep(SweepCommand(Sweep(folder, record), rules, orders), Instant(chance), on_slurm=False)
        go_on(conductor, Silent(), 0.0)


def killed(folder: SweepFolder, chance: random.Random, words: Sequence[str], *, remeasure: bool = False) -> None:
    """The command in a process that is killed at any instant."""
    child = os.fork()
    if child == 0:
        try:
            sweep_command(folder, chance, words, remeasure=remeasure)
        finally:
            os._exit(0)
    time.sleep(chance.uniform(0.0, 0.5))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def retry_any(folder: SweepFolder, chance: random.Random) -> None:
    sweep = Sweep.stored_in(folder)
    retry_failed_trials(sweep)
    with contextlib.suppress(UsageError):  # it is measured
        retry(sweep, [chance.choice(sweep.read())])


def any_command(folder: SweepFolder, chance: random.Random) -> Callable[[], None]:
    words, remeasure = chance.choice(COMMANDS), chance.random() < 0.2
    kind = chance.random()
    if kind < 0.1 and folder.record.exists():
        return lambda: void(cancel_sweep(Sweep.stored_in(folder)))
    if kind < 0.25 and folder.record.exists():
        return partial(retry_any, folder, chance)
    carry_out = killed if kind < 0.5 else sweep_command
    return partial(carry_out, folder, chance, words, remeasure=remeasure)


def void(_: object) -> None:
    """A command answers nobody here."""


def finished(folder: SweepFolder) -> dict[Path, str]:
    """The digest of every measurement that is on disk."""
    paths = folder.trials.glob("*/measurement.json")
    found = [path for path in paths if (read := folder.trial(path.parent.name).read_measurement()) and read.performance]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_command_changes_deletes_or_hides_what_an_earlier_one_measured(tmp_path: Path, seed: int) -> None:
    chance, folder = random.Random(seed), SweepFolder(tmp_path / "smoke-local")
    before: dict[Path, str] = {}
    for _ in range(NUM_COMMANDS):
        any_command(folder, chance)()
        now = finished(folder)
        assert before.items() <= now.items()
        before = now
        if not folder.record.exists():  # killed before anything was written
            continue
        sweep = Sweep.stored_in(folder)
        readings = sweep.read()
        shown = {reading.name for reading in readings if reading.performance}
        assert shown == {path.parent.name for path in now}
        rows = collect(sweep.record, readings)
        assert set(rows[rows["outcome"] == "COMPLETED"]["trial_id"]) == shown
        assert shown <= {run.key.split("/")[0] for run in sweep_runs(sweep.record, readings)}
    assert before


def test_a_search_of_a_changed_configuration_takes_as_many_points_as_if_none_had_been_asked_for(tmp_path: Path) -> None:
    chance, folder = random.Random(0), SweepFolder(tmp_path / "smoke-local")
    for steps in (4, 5):
        sweep_command(folder, chance, ["search=random", "sweep.max_trials=4", f"training.num_steps={steps}"])
    asked = [trial.planned.training.num_steps for trial in Sweep.stored_in(folder).record.trials if trial.selected]
    assert asked == [5] * 4
