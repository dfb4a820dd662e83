"""The speed of the trainer on CPU cores, against a plain PyTorch GPT of the same shape in the same run.

python -m benchmarks trainer

Every figure is a median of ratios between two steps that were taken one right after the other, because the machine's
speed changes while they run; beside it stands between which ratios the middle half of the pairs lies. Each of the two
goes first in every second pair. The processes of both are there from the beginning and sleep between their steps.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu_check.scale import LLAMA
from benchmarks.target import Target, at_least, at_most
from conf.compose.load import compose_tree, settings_of
from conf.compose.tree import with_values
from conf.plan.experiment import Experiment
from conf.types.schema import Value
from train_core.model.initialize import DTYPES
from train_core.process.world import Seat, choose_device, file_rendezvous, join
from train_core.training.trainer import Trainer

Answer = TypeVar("Answer")
NUM_WARMUP_ROUNDS, NUM_ROUNDS = 2, 10
QUIET = 0.95
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
    "training.learning_rate": 1e-5,
}
"""As in the published comparison of picotron, torchtitan and nanotron on two cores, in fp32. At a larger learning
rate the plain model, which has no warm-up, takes three times as long from its fourth step on."""

TENSOR, PIPELINE = "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"
LAYOUTS: dict[str, tuple[dict[str, Value], float]] = {
    "tp2": ({"parallel.world_size": 2, TENSOR: 2}, 0.88),
    "pp2": ({"parallel.world_size": 2, PIPELINE: 2}, 0.97),
    "dp2": ({"parallel.world_size": 2}, 1.02),
    "tp2 pp2": ({"parallel.world_size": 4, TENSOR: 2, PIPELINE: 2}, 0.82),
}
"""Values of each layout, and the least ratio of its tokens per second to one plain process with two threads."""

LONG: dict[str, Value] = {"model.num_layers": 2, "model.seq_length": 4096, "batch.global_batch_size": 1}
MIXTURE: dict[str, Any] = {
    **LLAMA,
    "model.experts": {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 512, "balance_loss": 0.01},
}
SMALL: dict[str, Value] = {"model.hidden_size": 64, "model.ffn_hidden_size": 128, "model.seq_length": 32}
DEEP_PIPELINE: dict[str, Value] = {"parallel.world_size": 4, PIPELINE: 4, "batch.global_batch_size": 4}


class StepCost(NamedTuple):
    """One step: wall seconds of the slowest process, and CPU seconds of all."""

    wall_seconds: float
    cpu_seconds: float


def main() -> list[Target]:
    """Measure, and return every figure beside its target."""
    alone = step_pairs({}, _plain(1))
    one, quiet = _speeds(alone), median(plain.cpu_seconds / plain.wall_seconds for _, plain in alone)
    targets = [
        # Threads of the plain model wait for each other busily. Where others take their cores it loses far more than
        # the trainer, so that on a busy machine the ratios below flatter.
        at_least("a quiet machine: CPU to wall time of the plain model, one thread", QUIET, quiet),
        at_least("one process: tokens/s to plain, one thread", 1.0, median(one), remark=middle_half(one)),
    ]
    for name, (values, least) in LAYOUTS.items():
        speeds = _speeds(step_pairs(values, _plain(2)))
        what = f"{name}: tokens/s to plain, two threads"
        targets.append(at_least(what, least, median(speeds), remark=middle_half(speeds)))
    targets += [
        _ratio(
            "cp2, sequences of 4,096: tokens/s to plain, two threads",
            step_pairs(LONG | {"parallel.world_size": 2, "parallel.context_parallel_size": 2}, _plain(2, LONG)),
        ),
        _ratio(
            "ep2, 8 experts: tokens/s to one process of the trainer, two threads",
            step_pairs(MIXTURE | {"parallel.world_size": 2, "parallel.expert_parallel_size": 2}, _trainer(MIXTURE, 2)),
        ),
    ]
    schedules = step_pairs(DEEP_PIPELINE | {"parallel.schedule": "zero-bubble"}, _trainer(DEEP_PIPELINE))
    costs = [ours.cpu_seconds / theirs.cpu_seconds for ours, theirs in schedules]
    what = "pp4, 4 micro-batches: CPU time of zero-bubble to 1F1B"
    calls = at_most("one process: calls of functions a layer and micro-batch", 300, _calls_a_layer())
    return [*targets, at_most(what, 1.02, median(costs), remark=middle_half(costs)), calls]


def _calls_a_layer() -> float:
    """Calls that Python makes, of functions of its own and of C, for one layer of one micro-batch."""
    few, many = (experiment_of({**SMALL, "model.num_layers": number}) for number in (2, 4))
    more = answers_of_ranks(many, _calls_of_a_step)[0] - answers_of_ranks(few, _calls_of_a_step)[0]
    return more / (many.model.num_layers - few.model.num_layers) / many.num_micro_batches


def _calls_of_a_step(rank: int, experiment: Experiment, folder: Path) -> int:
    steps, calls = _rank_steps(rank, experiment, folder, 1), list[str]()
    next(steps)
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    next(steps)
    sys.setprofile(None)
    return calls.count("call") + calls.count("c_call")


def _ratio(what: str, pairs: list[Pair]) -> Target:
    speeds = _speeds(pairs)
    return at_least(what, 0.9, median(speeds), remark=middle_half(speeds))


def step_pairs(values: Mapping[str, Value], others: Callable[[Path], Stepping]) -> list[Pair]:
    """Steps of the trainer and of others in turn, while no other processes of the benchmark exist."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = _trainer(values)(Path(folder, "ours")), others(Path(folder, "theirs"))
        take_turns(ours, theirs, NUM_WARMUP_ROUNDS)  # the first steps allocate
        pairs = take_turns(ours, theirs, NUM_ROUNDS)
        ours.end()
        theirs.end()
    return pairs


def _trainer(values: Mapping[str, Value], num_threads: int = 1) -> Callable[[Path], Stepping]:
    experiment = experiment_of(values)
    return lambda folder: Stepping(experiment.parallel.world_size, _rank_steps, experiment, folder, num_threads)


def _plain(num_threads: int, values: Mapping[str, Value] | None = None) -> Callable[[Path], Stepping]:
    return lambda folder: Stepping(1, _plain_steps, experiment_of(values or {}), num_threads)


def _speeds(pairs: Sequence[Pair]) -> list[float]:
    return [theirs.wall_seconds / ours.wall_seconds for ours, theirs in pairs]


def middle_half(ratios: Sequence[float]) -> str:
    """The middle half of the pairs, which says how much of a figure may be the machine's noise."""
    lower, _, upper = quantiles(ratios, n=4)
    return f"middle half {lower:.2f} to {upper:.2f}"


def experiment_of(values: Mapping[str, Value]) -> Experiment:
    tree = compose_tree(["model=tiny", "cluster=local"])
    return settings_of(with_values(tree, {**SHAPE, **values})).experiment()


class Stepping:
    """Processes that take a step together whenever they are asked to."""

    def __init__(self, num_processes: int, steps: Callable[..., Iterator[object]], *arguments: object) -> None:
        """`steps(rank, *arguments)` is called in every process, and advanced once for each step."""
        self.ends, self.processes = _forked(num_processes, _serve, steps, arguments)

    def step(self) -> StepCost:
        for end in self.ends:
            end.send(True)
        told: list[StepCost] = [_answering(end).recv() for end in self.ends]
        return StepCost(max(one.wall_seconds for one in told), sum(one.cpu_seconds for one in told))

    def end(self) -> None:
        for end in self.ends:
            end.send(False)
        for process in self.processes:
            process.join()


Pair = tuple[StepCost, StepCost]


def answers_of_ranks(experiment: Experiment, work: Callable[[int, Experiment, Path], Answer]) -> list[Answer]:
    """What `work(rank, experiment, folder)` returns in a process of each rank; they share the folder."""
    with tempfile.TemporaryDirectory() as folder:
        ends, processes = _forked(experiment.parallel.world_size, _send, work, experiment, Path(folder))
        told: list[Answer] = [_answering(end).recv() for end in ends]
        for process in processes:
            process.join()
    return told


def take_turns(ours: Stepping, theirs: Stepping, num_rounds: int) -> list[Pair]:
    """Take steps of both in turn, so that a change of the machine's speed meets both.

    They take turns in being first too, or a speed that falls all the time would favour one.
    """
    pairs = []
    for number in range(num_rounds):
        if number % 2:
            second = theirs.step()
            pairs.append((ours.step(), second))
        else:
            pairs.append((ours.step(), theirs.step()))
    return pairs


def _forked(
    num_processes: int, target: Callable[..., None], *arguments: object
) -> tuple[list[Connection], list[ForkProcess]]:
    """Our ends of pipes to processes that run `target(rank, end, *arguments)`, and these."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(num_processes)]
    # Daemons end with the benchmark, should it be interrupted.
    processes = [
        context.Process(target=target, args=(rank, theirs, *arguments), daemon=True)
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    return [ours for ours, _ in pipes], processes


def _answering(end: Connection) -> Connection:
    if not end.poll(ANSWER_SECONDS):
        raise TimeoutError(f"a rank did not answer for {ANSWER_SECONDS} s")
    return end


def _send(rank: int, end: Connection, work: Callable[..., object], *arguments: object) -> None:
    end.send(work(rank, *arguments))


def _serve(rank: int, end: Connection, steps: Callable[..., Iterator[object]], arguments: Sequence[object]) -> None:
    taken = steps(rank, *arguments)
    while end.recv():
        start, cpu_start = time.perf_counter(), _cpu_seconds()
        next(taken)
        end.send(StepCost(time.perf_counter() - start, _cpu_seconds() - cpu_start))


def _plain_steps(rank: int, experiment: Experiment, num_threads: int) -> Iterator[float]:
    torch.set_num_threads(num_threads)
    yield from plain_steps(experiment, DTYPES[experiment.precision.dtype])


def _rank_steps(rank: int, experiment: Experiment, folder: Path, num_threads: int) -> Iterator[object]:
    """The trainer's own steps, with so many threads for each rank."""
    folder.mkdir(exist_ok=True)
    seat = Seat(rank, experiment.parallel.world_size, rank, file_rendezvous(folder / "rendezvous"))
    trainer = Trainer(experiment, join(seat, choose_device("cpu", rank)), folder)
    torch.set_num_threads(num_threads)
    for step in count(1):
        yield trainer.step(step)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class PlainBlock(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.qkv, self.projection = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)
        self.up, self.down = nn.Linear(hidden_size, 4 * hidden_size), nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        # One product for q, k and v, and fused kernels wherever torch has them: the opponent must not be a weak one.
        q, k, v = self.qkv(self.norm_1(x)).view(b, s, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """Maps token ids and targets (b, s) to the mean loss. The head shares its weights with the token embedding."""

    def __init__(self, vocab_size: int, seq_length: int, hidden_size: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, hidden_size), nn.Embedding(seq_length, hidden_size)
        self.blocks = nn.Sequential(*(PlainBlock(hidden_size, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight
        logits = functional.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def plain_steps(experiment: Experiment, dtype: torch.dtype) -> Iterator[float]:
    """Train on random tokens for ever, and yield the loss after each optimizer step."""
    spec, batch = experiment.model, experiment.batch
    torch.manual_seed(experiment.training.seed)
    sizes = (spec.vocab_size, spec.seq_length, spec.hidden_size, spec.num_attention_heads, spec.num_layers)
    model = PlainGPT(*sizes).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=experiment.training.learning_rate, fused=True)
    num_micro_batches = batch.global_batch_size // batch.micro_batch_size
    while True:
        optimizer.zero_grad()
        loss = 0.0
        for _ in range(num_micro_batches):
            ids = torch.randint(spec.vocab_size, (batch.micro_batch_size, spec.seq_length + 1))
            part = model(ids[:, :-1], ids[:, 1:]) / num_micro_batches
            part.backward()
            loss += part.item()
        if experiment.training.clip_gradient_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), experiment.training.clip_gradient_norm)
        optimizer.step()
        yield loss
