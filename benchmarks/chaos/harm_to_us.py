"""Scenarios: controllers are killed, run beside each other, have wrong clocks, or have a thousand points."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

from benchmarks.chaos.job_on_node import quick_job
from benchmarks.chaos.scenario import CATALOGUE
from benchmarks.chaos.workbench import Workbench
from train_core.measurement import Outcome

HOUR = 3600.0
NUM_KILLS, LONGEST_LIFE_SECONDS = 50, 3.0


@CATALOGUE.add("kill -9 of the controller at 50 random instants", num_trials=20, repetitions=1)
def controller_killed(bench: Workbench) -> None:
    bench.order(seconds=6)
    chance = random.Random(0)
    for _ in range(NUM_KILLS):
        controller = _controller(bench)
        assert controller.stdout is not None
        controller.stdout.readline()  # its imports are done; what follows is its work
        time.sleep(chance.uniform(0, LONGEST_LIFE_SECONDS))
        bench.harm(controller.send_signal, signal.SIGKILL)
        controller.wait()
    bench.finish()


@CATALOGUE.add("kill -9 of the controller while it submits", num_trials=8, repetitions=3)
def controller_killed_while_it_submits(bench: Workbench) -> None:
    bench.order(seconds=3)
    chance = random.Random(time.time_ns())
    for _ in range(5):
        controller = _controller(bench)
        assert controller.stdout is not None
        controller.stdout.readline()
        time.sleep(chance.uniform(0, 0.3))
        bench.harm(controller.send_signal, signal.SIGKILL)
        controller.wait()
    bench.finish()


@CATALOGUE.add("three controllers at once", repetitions=3)
def several_controllers(bench: Workbench) -> None:
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


@CATALOGUE.add("the controller's clock is an hour behind, then an hour ahead", repetitions=1)
def clock_of_the_controller_wrong(bench: Workbench) -> None:
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


@CATALOGUE.add("the nodes' clocks are an hour ahead", repetitions=1)
def clocks_of_nodes_wrong(bench: Workbench) -> None:
    bench.num_faults += 1
    bench.order({bench.names[0]: {"end": "kills itself"}}, seconds=2, clock_ahead_seconds=HOUR)
    bench.start()
    bench.settle()
    assert bench.measurement_of(bench.names[0]).outcome is Outcome.FAILED
    bench.order(seconds=1, clock_ahead_seconds=HOUR)
    bench.advance(retry_failed=True)
    bench.finish()


@CATALOGUE.add("1,000 points in one sweep", num_trials=1000, repetitions=1, alone=True)
def a_thousand_points(bench: Workbench) -> None:
    bench.job = quick_job
    bench.order_quick_jobs()
    bench.start(array_parallelism=6)  # at once on one machine, beside Slurm itself
    bench.finish(seconds=900)


def _controller(bench: Workbench, *options: str) -> subprocess.Popen[str]:
    """A process that carries the sweep on. It prints a line once it has begun."""
    module = [sys.executable, "-m", "benchmarks.chaos.controller"]
    return subprocess.Popen([*module, str(bench.sweep.folder.path), *options], stdout=subprocess.PIPE, text=True)
