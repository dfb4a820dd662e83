"""What tests of the search share: settings that cover families, precisions, clusters and trainers; random plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conf.compose.settings import Settings
from costs import IMPLEMENTATIONS
from costs.setting import Setting
from sweeps.planner.plans.blocks import PlanGrid, blocks
from sweeps.planner.plans.space import Space
from sweeps.planner.plans.strategy import Strategy, strategies_of
from tests.composed import load

CASES = {
    "12 layers of GPT-3 on Selene": (
        ["model=gpt-175b", "model.num_layers=12", "cluster=selene", "precision=bf16"],
        64,
        96,
        "trisweep",
    ),
    "GPT 22B on Frontier, Megatron-DeepSpeed": (
        ["model=gpt-22b", "model.num_layers=24", "cluster=frontier", "precision=fp16"],
        48,
        240,
        "megatron-deepspeed",
    ),
    "16 layers of Llama 3.1 8B on H100": (
        ["model=llama-3.1-8b", "model.num_layers=16", "cluster=dgx-h100", "precision=bf16"],
        16,
        64,
        "trisweep",
    ),
    "Llama 2 70B under FSDP": (["model=llama-2-70b", "cluster=jean-zay", "precision=bf16"], 64, 128, "fsdp"),
    "12 layers of BLOOM on Jean Zay, Megatron-Core": (
        ["model=bloom-176b", "model.num_layers=12", "cluster=jean-zay", "precision=bf16"],
        48,
        128,
        "megatron-core",
    ),
    "the 175B's proxy on a CPU": (["model=gpt-175b-proxy", "cluster=local", "precision=fp32"], 8, 24, "trisweep"),
    "across nodes": (
        ["model=gpt-22b", "model.num_layers=24", "cluster=jean-zay", "precision=bf16"]
        + ["parallel.tensor_parallel_across_nodes=true"],
        48,
        96,
        "megatron-lm",
    ),
}


class Case:
    """A space with the settings that it came from."""

    def __init__(self, overrides: list[str], world_size: int, global_batch_size: int, trainer: str) -> None:
        self.settings: Settings = load(overrides)
        self.space = Space(
            Setting(
                self.settings.model,
                self.settings.cluster,
                self.settings.precision.dtype,
                IMPLEMENTATIONS[trainer],
            ),
            world_size,
            global_batch_size,
            self.settings.parallel.tensor_parallel_across_nodes,
        )

    def strategies(self, block: PlanGrid, index: np.ndarray) -> list[Strategy]:
        return strategies_of(
            block.rows(index),
            self.settings.model.num_layers,
            tensor_parallel_across_nodes=self.space.tensor_parallel_across_nodes,
            settings=[block.setting] * len(index),
        )

    def pinned(self, **knobs: object) -> Space:
        return replace(self.space, pinned=knobs)  # type: ignore[arg-type]


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*CASES[request.param])


def drawn(space: Space, rng: np.random.Generator, number: int) -> list[tuple[PlanGrid, np.ndarray]]:
    """`number` random legal plans of a space, by their block and their numbers in it."""
    found = list(blocks(space))
    weights = np.array([block.num_strategies for block in found], dtype=float)
    counts = rng.multinomial(number, weights / weights.sum())
    return [
        (block, rng.choice(np.flatnonzero(np.broadcast_to(block.legal, block.shape)), size=count))
        for block, count in zip(found, counts.tolist(), strict=True)
        if count
    ]
