"""How a row was run, where scripts and recipes that its source keeps beside the table say it and the row does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf.knobs import EXPERT_DISPATCHERS
from conf.schema import ExpertDispatcher
from sweeps.table.cells import Row, choice_of, text_of
from sweeps.table.remarks import said
from train_core.costs import Implementation
from train_core.costs.trainers.fsdp import FSDP


@dataclass(frozen=True)
class SourceRecipe:
    """What one source says of some of its rows.

    Attributes:
        where: patterns that the row's columns have to match, in lower case; a column that does not is another row's.
        facts: fields of `Implementation`, and the dispatcher of a plan, that the recipe decides.
    """

    where: Mapping[str, str]
    facts: Mapping[str, object]

    def is_of(self, row: Row) -> bool:
        return all(re.search(pattern, text_of(row, column).lower()) for column, pattern in self.where.items())


DISPATCHERS: dict[str, ExpertDispatcher] = {**{name: name for name in EXPERT_DISPATCHERS}, "all-to-all": "alltoall"}
LAUNCHED_BY_GRAPHS = {"launch_seconds": 0.0, "collective_call_seconds": 0.0}
SINCE_26_06 = r"megatron-bridge.*\(26\.(?:0[6-9]|1\d)|megatron-bridge.*\((?:2[7-9]|[3-9]\d)\."
WITH_A_CHOICE = r"^(?!0|1(?:\.0)?$)\d"
RECIPES = (
    # Megatron-LM reduces beside the gradients of weights since September 2021 (commit 16c90445), the paper is of April.
    SourceRecipe({"arxiv": r"^2104\.04473"}, {"overlaps_weight_gradient": False}),
    # nemo_megatron/launch.sh turns cuDNN's attention off, which leaves FlashAttention 2, and gpt3_175b_hydra.yaml drops
    # one value in ten; the sources' other models do neither.
    SourceRecipe(
        {"source": r"dgxc-benchmarking @v24\.11", "model": r"^gpt3"},
        {"dropout": True, "attention_since_hopper": FSDP.attention_since_hopper},
    ),
    # nemotron/launch.sh and grok1/launch.sh: --cuda_graphs true.
    SourceRecipe(
        {"source": r"dgxc-benchmarking @v25\.05", "gpu": r"gb200|b200", "model": r"^(?:nemotron4|grok1)"},
        LAUNCHED_BY_GRAPHS,
    ),
    # moe_flex_dispatcher_backend of the recipes for GPUs from Blackwell on, moe_a2a_overlap of one (Megatron-Bridge's
    # deepseek_workload_base_configs.py, DEEPSEEK_V3_PRETRAIN_CONFIG_B200_FP8_MX_V2).
    SourceRecipe({"source": "megatron-bridge", "num_experts": WITH_A_CHOICE}, {"expert_dispatcher": "hybridep"}),
    SourceRecipe(
        {"source": "megatron-bridge", "gpu": r"^b200", "model": r"deepseek-v3", "vpp": r"^[2-9]", "precision": "mxfp8"},
        {"expert_dispatcher": "deepep", "experts_overlap": 1.0},
    ),
    # _enable_hybridep_full_iteration_mxfp8: one graph of the whole step, and overlap_moe_expert_parallel_comm.
    SourceRecipe(
        {"source": SINCE_26_06, "num_experts": WITH_A_CHOICE, "precision": "mxfp8"},
        {**LAUNCHED_BY_GRAPHS, "experts_overlap": 1.0},
    ),
)


def with_recipe_of(row: Row, trainer: Implementation) -> Implementation:
    """The trainer as the recipes of the row's source run it."""
    own = {name: value for name, value in _facts_of(row).items() if name in Implementation.model_fields}
    return trainer.model_copy(update=own)


def dispatcher_of(row: Row) -> ExpertDispatcher:
    """What brings tokens to their experts: as the row says, in its column or in a remark, else as its recipe does."""
    remark = said(row, r"\b(?:deepep|hybridep)\b", ("notes",))
    usual: Any = remark.group() if remark else _facts_of(row).get("expert_dispatcher", "alltoall")
    return choice_of(row, "dispatcher", DISPATCHERS, default=usual)


def _facts_of(row: Row) -> dict[str, object]:
    """What all recipes of the row decide; of two that decide the same the later one."""
    return {name: value for recipe in RECIPES if recipe.is_of(row) for name, value in recipe.facts.items()}
