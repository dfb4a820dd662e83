"""The cost of watching a training, and how soon a job takes its first step.

python -m benchmarks overhead

The cost is counted in CPU time of the rank where it is largest: everything that `train` does around the trainer's own
steps (metrics, heartbeat, agreement on times), the watchdog's thread, and the clock's notes within the steps.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.target import Target, at_most
from benchmarks.trainer import SHAPE, TENSOR, answers_of_ranks, experiment_of
from conf.plan.experiment import Experiment
from train_core.parallel.clock import Clock, Line
from train_core.process.world import Seat, choose_device, file_rendezvous, join, leave
from train_core.training.train import train
from train_core.training.trainer import Trainer
from train_core.trial.folder import TrialFolder
from train_core.watch.watchdog import watch_rank

NUM_STEPS, NUM_NOTES, NUM_STARTS = 12, 10_000, 3
WATCHED = {"parallel.world_size": 2, TENSOR: 2, "batch.global_batch_size": 2, "training.num_steps": NUM_STEPS}
"""Two tensor-parallel ranks, which wait for each other most often, and few micro-batches."""

EIGHT_RANKS = [
    *("model=tiny", "cluster=local", "training.num_steps=2", "training.num_warmup_steps=1"),
    *("parallel.world_size=8", f"{TENSOR}=2", "parallel.pipeline_parallel_size=2"),
]


def main() -> list[Target]:
    what = f"CPU time of metrics, heartbeat and watchdog to a step's, tp2, {SHAPE['model.num_layers']} layers"
    starts = median(seconds_to_first_step() for _ in range(NUM_STARTS))
    return [
        at_most(what, 0.5, 100 * max(answers_of_ranks(experiment_of(WATCHED), share_of_rank)), " %"),
        at_most("8 ranks on this machine, from the command to the end of the first step", 6.0, starts, " s"),
    ]


def share_of_rank(rank: int, experiment: Experiment, folder: Path) -> float:
    """The share of its step that watching takes."""
    seat = Seat(rank, experiment.parallel.world_size, rank, file_rendezvous(folder / "rendezvous"))
    world, trial = join(seat, choose_device("cpu", rank), experiment.watch.hang_seconds), TrialFolder(folder)
    marks, steps, notes = list[float](), list[float](), list[int]()
    # The trainer's step is wrapped to tell its own time from that of `train` around it; this process ends afterwards.
    own_step = Trainer.step

    def step(trainer: Trainer, *arguments: Any) -> Any:
        start = time.thread_time()
        result = own_step(trainer, *arguments)
        marks.append(time.thread_time())
        steps.append(marks[-1] - start)
        notes.append(len(world.clock._spans) + len(world.clock._passes))
        return result

    Trainer.step = step  # type: ignore[method-assign,assignment]
    with watch_rank(trial, world, experiment.watch.hang_seconds):
        train(experiment, world, folder, trial.append_metrics)
        looking = sum(_cpu_seconds_of(thread) for thread in threading.enumerate() if thread.name == "watchdog")
    leave(world)
    inside = sum(steps[1:])  # the first step allocates
    around = marks[-1] - marks[0] - inside
    return (around + looking + sum(notes[1:]) * seconds_of_a_note()) / inside


def _cpu_seconds_of(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def seconds_of_a_note() -> float:
    clock = Clock()
    line = Line("tensor", (0, 1), clock)
    start = time.thread_time()
    for _ in range(NUM_NOTES):
        clock.wait(line.start("all_reduce", 1024), bool)
    return (time.thread_time() - start) / NUM_NOTES


def seconds_to_first_step() -> float:
    """Wall seconds of `trisweep train` until it prints that step 1 is done."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("trisweep")), "train", *EIGHT_RANKS, f"output_dir={folder}"]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("step"):
                    seconds = time.perf_counter() - start
                    process.stdout.read()  # the command would end by a broken pipe if nobody read on
                    return seconds
    raise RuntimeError(f"{' '.join(command)} took no step: {''.join(said)}")
