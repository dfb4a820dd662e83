"""How fast the trainer is on CPU cores, against a plain PyTorch GPT of the same shape in the same run.

python -m benchmarks trainer

Every figure is a median of ratios between measurements that were taken one after the other; all are taken in turn,
several times, because the machine's speed changes while they run.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from benchmarks.plain_gpt import plain_steps
from benchmarks.target import Target, at_least, at_most
from conf.experiment import Experiment
from conf.load import compose_tree, settings_of, with_values
from conf.schema import Value
from train_core.job.world import Seat, choose_device, file_rendezvous, join, leave
from train_core.parallel.parallelize import DTYPES
from train_core.train import Trainer

NUM_ROUNDS, NUM_WARMUP_STEPS, NUM_TIMED_STEPS = 3, 1, 2
ANSWER_SECONDS = 600
SHAPE: dict[str, Value] = {
    "model.num_layers": 8,
    "model.hidden_size": 512,
    "model.ffn_hidden_size": 2048,
    "model.num_attention_heads": 8,
    "model.num_query_groups": 8,
    "model.seq_length": 256,
    "model.vocab_size": 8192,
    "batch.global_batch_size": 8,
    "batch.micro_batch_size": 1,
    "data.source": "synthetic",
}
"""That of the published comparison of picotron, torchtitan and nanotron on two cores, in fp32."""

TENSOR, PIPELINE = "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"
LAYOUTS: dict[str, tuple[dict[str, Value], float]] = {
    "tp2": ({"parallel.world_size": 2, TENSOR: 2}, 0.88),
    "pp2": ({"parallel.world_size": 2, PIPELINE: 2}, 0.97),
    "dp2": ({"parallel.world_size": 2}, 1.02),
    "tp2 pp2": ({"parallel.world_size": 4, TENSOR: 2, PIPELINE: 2}, 0.82),
}
"""Values of each layout, and the least ratio of its tokens per second to one plain process with two threads."""

DEEP_PIPELINE: dict[str, Value] = {"parallel.world_size": 4, PIPELINE: 4, "batch.global_batch_size": 4}


class Measured(NamedTuple):
    """Medians over the timed steps: wall seconds of a step, and CPU seconds of a step over all processes."""

    wall_seconds: float
    cpu_seconds: float


def main() -> list[Target]:
    """Every figure beside its target."""
    plain: dict[str, Callable[[], Measured]] = {
        "plain, one thread": lambda: measure_plain(experiment_of({}), 1),
        "one process": lambda: measure_trainer(experiment_of({})),
        "plain, two threads": lambda: measure_plain(experiment_of({}), 2),
    }
    layouts = {name: _trainer(values) for name, (values, _) in LAYOUTS.items()}
    schedules = {name: _trainer(DEEP_PIPELINE | {"parallel.schedule": name}) for name in ("1f1b", "zero-bubble")}
    seen = in_turn({**plain, **layouts, **schedules}, NUM_ROUNDS)
    targets = [at_least("one process: tokens/s to plain, one thread", 1.0, _speed(seen, "one process", "one thread"))]
    for name, (_, least) in LAYOUTS.items():
        targets.append(at_least(f"{name}: tokens/s to plain, two threads", least, _speed(seen, name, "two threads")))
    cpu = [a.cpu_seconds / b.cpu_seconds for a, b in zip(seen["zero-bubble"], seen["1f1b"], strict=True)]
    targets.append(at_most("pp4, 4 micro-batches: CPU time of zero-bubble to 1F1B", 1.02, median(cpu)))
    return targets


def _trainer(values: dict[str, Value]) -> Callable[[], Measured]:
    return lambda: measure_trainer(experiment_of(values))


def _speed(seen: Mapping[str, list[Measured]], name: str, threads: str) -> float:
    plain = seen[f"plain, {threads}"]
    return median(b.wall_seconds / a.wall_seconds for a, b in zip(seen[name], plain, strict=True))


def in_turn(runs: Mapping[str, Callable[[], Measured]], num_rounds: int) -> dict[str, list[Measured]]:
    """Each run once a round."""
    seen: dict[str, list[Measured]] = {name: [] for name in runs}
    for _ in range(num_rounds):
        for name, run in runs.items():
            seen[name].append(run())
    return seen


def experiment_of(values: Mapping[str, Value]) -> Experiment:
    tree = compose_tree(["model=tiny", "cluster=local"])
    return settings_of(with_values(tree, {**SHAPE, **values})).experiment()


def measure_plain(experiment: Experiment, num_threads: int) -> Measured:
    return _in_processes(1, _plain, experiment, num_threads)


def measure_trainer(experiment: Experiment) -> Measured:
    """The trainer's own step, one thread for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        return _in_processes(experiment.parallel.world_size, _rank, experiment, Path(folder))


def _in_processes(num_processes: int, run: Callable[..., None], *arguments: object) -> Measured:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(num_processes)]
    processes = [context.Process(target=run, args=(rank, sender, *arguments)) for rank, (_, sender) in enumerate(pipes)]
    for process in processes:
        process.start()
    told = [_answer(receiver) for receiver, _ in pipes]
    for process in processes:
        process.join()
    return Measured(max(one.wall_seconds for one in told), sum(one.cpu_seconds for one in told))


def _answer(receiver: Connection) -> Measured:
    if not receiver.poll(ANSWER_SECONDS):
        raise TimeoutError(f"a rank did not answer for {ANSWER_SECONDS} s")
    measured: Measured = receiver.recv()
    return measured


def _plain(rank: int, sender: Connection, experiment: Experiment, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    sender.send(_timed(plain_steps(experiment, DTYPES[experiment.precision.dtype])))


def _rank(rank: int, sender: Connection, experiment: Experiment, folder: Path) -> None:
    seat = Seat(rank, experiment.parallel.world_size, rank, file_rendezvous(folder / "rendezvous"))
    world = join(seat, choose_device("cpu", rank))
    trainer = Trainer(experiment, world, folder)
    sender.send(_timed(trainer.step(step).loss for step in range(1, NUM_WARMUP_STEPS + NUM_TIMED_STEPS + 1)))
    leave(world)


def _timed(steps: Iterator[float]) -> Measured:
    for _ in range(NUM_WARMUP_STEPS):
        next(steps)
    wall, cpu = [], []
    for _ in range(NUM_TIMED_STEPS):
        start, cpu_start = time.perf_counter(), _cpu_seconds()
        next(steps)
        wall.append(time.perf_counter() - start)
        cpu.append(_cpu_seconds() - cpu_start)
    return Measured(median(wall), median(cpu))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
