"""Pipelines pass by pass: who waits for whom, without a formula. The reference for `costs.step.schedule`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Kind = Literal["forward", "backward", "input gradient", "weight gradient"]


@dataclass(frozen=True)
class Stage:
    """Seconds of one micro-batch."""

    forward: float
    input_gradient: float
    weight_gradient: float

    def seconds(self, kind: Kind) -> float:
        backward = {"input gradient": self.input_gradient, "weight gradient": self.weight_gradient}
        return {"forward": self.forward, "backward": sum(backward.values()), **backward}[kind]


def scaled(stage: Stage, factor: float) -> Stage:
    return Stage(stage.forward * factor, stage.input_gradient * factor, stage.weight_gradient * factor)


class Pass(NamedTuple):
    """One micro-batch through one model chunk of a stage."""

    kind: Kind
    chunk: int
    micro_batch: int


def one_f_one_b_passes(stage: int, num_stages: int, num_micro_batches: int) -> list[Pass]:
    """Source: arXiv 2104.04473, section 2.2.1."""
    ahead = min(num_stages - stage - 1, num_micro_batches)
    passes = [Pass("forward", 0, j) for j in range(ahead)]
    for j in range(num_micro_batches - ahead):
        passes += [Pass("forward", 0, j + ahead), Pass("backward", 0, j)]
    return passes + [Pass("backward", 0, j) for j in range(num_micro_batches - ahead, num_micro_batches)]


def interleaved_passes(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int) -> list[Pass]:
    """Source: arXiv 2104.04473, section 2.2.2, in the order of Megatron-LM's `forward_backward_pipelining_with_
    interleaving`: micro-batches in groups of at least as many as there are stages, each group through all chunks.
    """
    num_groups = max(1, num_micro_batches // num_stages)
    groups = [list(group) for group in np.array_split(np.arange(num_micro_batches), num_groups)]
    order = [(chunk, int(j)) for group in groups for chunk in range(num_chunks) for j in group]
    forwards = [Pass("forward", chunk, j) for chunk, j in order]
    backwards = [Pass("backward", num_chunks - 1 - chunk, j) for chunk, j in order]
    ahead = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * len(groups[0]), len(order))
    passes = forwards[:ahead]
    for number in range(len(order) - ahead):
        passes += [forwards[number + ahead], backwards[number]]
    return passes + backwards[len(order) - ahead :]


def zero_bubble_passes(stage: int, num_stages: int, num_micro_batches: int) -> list[Pass]:
    """ZB-H1: a stage defers weight gradients by as many micro-batches as stages before it, which fills its waits.

    Source: arXiv 2401.10241, section 2.2.
    """
    ahead = num_stages - stage
    passes = [Pass("forward", 0, j) for j in range(min(ahead, num_micro_batches))]
    for j in range(num_micro_batches):
        passes.append(Pass("input gradient", 0, j))
        passes += [Pass("weight gradient", 0, j - stage)] if j >= stage else []
        passes += [Pass("forward", 0, j + ahead)] if j + ahead < num_micro_batches else []
    deferred = range(max(0, num_micro_batches - stage), num_micro_batches)
    return passes + [Pass("weight gradient", 0, j) for j in deferred]


def simulated_seconds(stages: Sequence[Stage], passes: Sequence[Sequence[Pass]], num_chunks: int) -> float:
    """As `simulated_seconds_of_chunks`, with stages that are cut into equal chunks."""
    parts = (
        Stage(*(value / num_chunks for value in (one.forward, one.input_gradient, one.weight_gradient)))
        for one in stages
    )
    return simulated_seconds_of_chunks([[part] * num_chunks for part in parts], passes)


def simulated_seconds_of_chunks(chunks: Sequence[Sequence[Stage]], passes: Sequence[Sequence[Pass]]) -> float:
    """From the first forward to the last backward: every stage works its list off, each pass as soon as it can.

    Args:
        chunks: for each stage, the seconds of each of its chunks.
    """
    num_stages, num_chunks = len(chunks), len(chunks[0])
    ended: dict[tuple[int, Pass], float] = {}
    clock = [0.0] * num_stages
    following = [0] * num_stages
    while any(following[stage] < len(passes[stage]) for stage in range(num_stages)):
        moved = False
        for stage in range(num_stages):
            while following[stage] < len(passes[stage]):
                one = passes[stage][following[stage]]
                needed = _needed(stage, one, num_stages, num_chunks)
                if any(before not in ended for before in needed):
                    break
                start = max([clock[stage], *(ended[before] for before in needed)])
                clock[stage] = ended[stage, one] = start + chunks[stage][one.chunk].seconds(one.kind)
                following[stage] += 1
                moved = True
        assert moved, "the passes wait for each other"
    return max(clock)


def _needed(stage: int, one: Pass, num_stages: int, num_chunks: int) -> list[tuple[int, Pass]]:
    """What must have ended before: the same micro-batch on the neighbouring model chunk."""
    if one.kind == "weight gradient":
        return [(stage, one._replace(kind="input gradient"))]
    if one.kind == "forward":
        if stage > 0:
            return [(stage - 1, one)]
        return [(num_stages - 1, one._replace(chunk=one.chunk - 1))] if one.chunk > 0 else []
    if stage < num_stages - 1:
        return [(stage + 1, one)]
    if one.chunk < num_chunks - 1:
        return [(0, one._replace(chunk=one.chunk + 1))]
    return [(stage, Pass("forward", one.chunk, one.micro_batch))]
