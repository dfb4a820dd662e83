"""Scenarios: controllers are killed, run beside each other, have wrong clocks, or have hundreds of points."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.chaos.job_on_node import quick_job
from benchmarks.chaos.scenario import scenario
from benchmarks.chaos.workbench import ChaosWorkbench, refusals_told
from launcher.cancel import cancel_sweep
from launcher.control.orders import pause, resume, retry_failed_trials
from sweeps.sweep import Sweep
from train_core.trial.measurement import Outcome

HOUR = 3600.0
NUM_COMMANDS = 25
"""Rounds of one to three commands."""

NUM_KILLS, LONGEST_LIFE_SECONDS = 50, 3.0


@scenario("kill -9 of the controller at 50 random instants", num_trials=20, repetitions=1)
def controller_killed(bench: ChaosWorkbench) -> None:
    bench.order(seconds=6)
    _kill_controllers(bench, NUM_KILLS, LONGEST_LIFE_SECONDS)


@scenario("kill -9 of the controller while it submits", num_trials=8, repetitions=2)
def controller_killed_while_it_submits(bench: ChaosWorkbench) -> None:
    bench.order(seconds=3)
    _kill_controllers(bench, 5, 0.3)


def _kill_controllers(bench: ChaosWorkbench, times: int, longest_life_seconds: float) -> None:
    for _ in range(times):
        controller = _controller(bench)
        assert controller.stdout is not None
        controller.stdout.readline()  # its imports are done; what follows is its work
        time.sleep(bench.chance.uniform(0, longest_life_seconds))
        bench.harm(controller.send_signal, signal.SIGKILL)
        controller.wait()
    bench.finish()


@scenario("three controllers at once", repetitions=2)
def several_controllers(bench: ChaosWorkbench) -> None:
    bench.order(seconds=2)
    bench.num_faults += 1
    controllers = [_controller(bench) for _ in range(3)]
    try:
        bench.settle()
    finally:
        for controller in controllers:
            controller.kill()
            controller.wait()
    bench.finish()


@scenario("50 commands at random instants, up to three at once: cancel, pause, resume, retry, sweep", num_trials=6)
def commands_race(bench: ChaosWorkbench) -> None:
    bench.begin({bench.names[0]: {"end": "kills itself"}}, seconds=3)
    fork, orders = multiprocessing.get_context("fork"), (cancel_sweep, pause, resume, retry_failed_trials, None)
    for _ in range(NUM_COMMANDS):
        at_once = [
            fork.Process(target=_give, args=(bench, bench.chance.choice(orders), bench.chance.uniform(0, 0.5)))
            for _ in range(bench.chance.randint(1, 3))
        ]
        for process in at_once:
            bench.harm(process.start)
        for process in at_once:
            process.join()
        assert not any(process.exitcode for process in at_once), "a command ended in a traceback"
    bench.order(seconds=1)
    resume(Sweep.stored_in(bench.sweep.folder))
    bench.finish()  # what still runs had its orders before, and may fail yet; only what has failed is tried again
    bench.advance(retry_failed=True)
    bench.finish()


def _give(bench: ChaosWorkbench, order: Callable[[Sweep], object] | None, seconds: float) -> None:
    """Give a command, after a while; None is the sweep's own. What it refuses with a reason is no fault."""
    time.sleep(seconds)
    with refusals_told():
        if order is None:
            bench.advance()
        else:
            order(Sweep.stored_in(bench.sweep.folder))


@scenario("the controller's clock is an hour behind, then an hour ahead", repetitions=1)
def clock_of_the_controller_wrong(bench: ChaosWorkbench) -> None:
    bench.order({bench.names[0]: {"end": "kills itself"}}, seconds=2)
    for skew in (-HOUR, HOUR):
        bench.num_faults += 1
        controller = _controller(bench, f"--clock={skew}")
        try:
            bench.settle()
        finally:
            controller.kill()
            controller.wait()
        bench.order(seconds=1)
        bench.advance(retry_failed=True)
    bench.finish()


@scenario("the nodes' clocks are an hour ahead", repetitions=1)
def clocks_of_nodes_wrong(bench: ChaosWorkbench) -> None:
    bench.num_faults += 1
    bench.begin({bench.names[0]: {"end": "kills itself"}}, seconds=2, clock_ahead_seconds=HOUR)
    bench.settle()
    assert bench.measurement_of(bench.names[0]).outcome is Outcome.FAILED
    bench.retry(clock_ahead_seconds=HOUR)


@scenario("300 points in one sweep", num_trials=300, repetitions=1, alone=True)
def three_hundred_points(bench: ChaosWorkbench) -> None:
    bench.job = quick_job
    bench.order_quick_jobs()
    bench.start(array_parallelism=6)  # at once on one machine, beside Slurm itself
    bench.finish(seconds=900)


def _controller(bench: ChaosWorkbench, *options: str) -> subprocess.Popen[str]:
    """A process that carries the sweep on. It prints a line once it has begun."""
    module = [sys.executable, "-m", "benchmarks.chaos.controller"]
    return subprocess.Popen([*module, str(bench.sweep.folder.path), *options], stdout=subprocess.PIPE, text=True)
