"""The answer in docs/diagnose.md is what the command prints today of the log that the page tells of."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from diagnose.diagnosis import RunVerdict, diagnose
from diagnose.runs import UserRun
from tests.diagnose.made_run import fact
from tests.diagnose.made_up import CORE, SIZES, dump, megatron_steps
from tests.docs.documented import ROOT
from tests.forked_command import run_forked

PAGE = ROOT / "docs" / "diagnose.md"
OF_PAGE = {
    **CORE,
    "attention_softmax_in_fp32": False,
    "make_vocab_size_divisible_by": 128,
    "overlap_grad_reduce": False,
    "padded_vocab_size": 128256,
    "save_interval": 50,
    "sequence_parallel": False,
    "tp_comm_overlap": False,
}
MEMORY = (
    "[Rank 0] (after 10 iterations) memory (MB) | allocated: 9801.5 | max allocated: 12822.9 | reserved: 14466.0 | "
)
SOCKET = "node07:4121:4188 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n"


def test_what_readme_shows_are_lines_of_that_answer() -> None:
    shown = (ROOT / "README.md").read_text().partition("    $ trisweep diagnose run.log")[2].partition("\n\nFrom a")[0]
    lines = [line for line in shown.splitlines()[1:] if line.strip() not in ("", "...")]
    assert len(lines) > 10
    assert [line for line in lines if line not in PAGE.read_text()] == []


def example_log() -> str:
    """A log of Megatron-Core that ran over sockets, and saved every fifty steps."""
    drawn = random.Random(7)
    times = [30.8, *(19.4 * drawn.gauss(1, 0.008) for _ in range(20))]
    lines = megatron_steps(times).splitlines()
    for place in range(20, 0, -5):
        lines.insert(place, f"saving checkpoint at iteration {place * 10:7} to /checkpoints in torch_dist format")
    lines.insert(1, f"{MEMORY}max reserved: 14466.0")
    return SOCKET + SIZES + dump(OF_PAGE) + "\n".join(lines) + "\n"


def test_the_answer_in_the_page_is_what_the_command_prints_today(tmp_path: Path) -> None:
    shown = PAGE.read_text().partition("    $ trisweep diagnose run.log cluster=dgx-h100\n")[2].partition("\n\n1. ")[0]
    (tmp_path / "run.log").write_text(example_log())
    environment = {**os.environ, "COLUMNS": "100"}
    printed = run_forked(("diagnose", "run.log", "cluster=dgx-h100"), tmp_path, environment).stdout
    assert re.sub(r"\s+", " ", printed).strip() == re.sub(r"\s+", " ", shown).strip()


Facts = Mapping[str, str]
LLAMA_13B = {"layers": "40", "hidden": "5120", "heads": "40", "ffn_hidden": "13824", "gated_mlp": "yes"}
LLAMA_7B = {
    **{"layers": "32", "hidden": "4096", "heads": "32", "ffn_hidden": "11008", "gated_mlp": "yes", "vocab": "32000"},
}
CASES: Mapping[str, tuple[str, Facts, Facts]] = {
    "Megatron-LLaMA #16": (
        "megatron-core",
        {
            **LLAMA_13B,
            **{"vocab": "32000", "seq": "2048", "cluster": "a800", "num_gpus": "16", "tp": "4", "pp": "1"},
            **{"micro_batch": "4", "global_batch": "1024", "sequence_parallel": "yes", "zero_stage": "1"},
            **{"precision": "bf16", "flash_attention": "yes", "tokens_per_s": str(16 * 840)},
        },
        {"no_gradient_accumulation_fusion": "True"},
    ),
    "NeMo #8059": (
        "megatron-core",
        {
            **LLAMA_13B,
            **{"vocab": "32000", "seq": "4096", "cluster": "selene", "num_gpus": "8", "tp": "4", "pp": "1"},
            **{"micro_batch": "1", "global_batch": "32", "sequence_parallel": "yes", "zero_stage": "1"},
            **{"precision": "bf16", "recompute": "selective", "tokens_per_s": str(8 * 1900)},
        },
        {},
    ),
    "torchtitan #708": (
        "torchtitan",
        {
            **{"layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn_hidden": "14336"},
            **{"gated_mlp": "yes", "vocab": "128256", "seq": "8192", "cluster": "dgx-h100", "num_gpus": "32"},
            **{"tp": "1", "pp": "1", "micro_batch": "1", "global_batch": "32", "zero_stage": "FSDP2"},
            **{"recompute": "selective (per op)", "precision": "bf16", "tokens_per_s": str(32 * 1786)},
        },
        {},
    ),
    "ColossalAI #4744": (
        "deepspeed",
        {
            **LLAMA_13B,
            **{"vocab": "32000", "seq": "2048", "gpu": "A100-80GB-SXM", "num_gpus": "8", "tp": "1", "pp": "1"},
            **{"micro_batch": "8", "global_batch": "64", "zero_stage": "3", "precision": "bf16", "recompute": "full"},
            **{"flash_attention": "no", "iter_time_s": "13.5"},
        },
        {},
    ),
    "ColossalAI #4551": (
        "deepspeed",
        {
            **LLAMA_13B,
            **{"vocab": "32000", "seq": "4096", "gpu": "A100-80GB-SXM", "num_gpus": "8", "tp": "1", "pp": "1"},
            **{"micro_batch": "8", "global_batch": "64", "zero_stage": "3", "precision": "bf16", "recompute": "full"},
            **{"flash_attention": "yes", "iter_time_s": "19.7"},
        },
        {},
    ),
    "ColossalAI #4342": (
        "deepspeed",
        {
            **LLAMA_7B,
            **{"seq": "512", "gpu": "A800-80GB-SXM", "num_gpus": "8", "tp": "1", "pp": "1", "micro_batch": "8"},
            **{"global_batch": "64", "zero_stage": "3", "precision": "bf16", "tokens_per_s": str(64.101 * 512)},
        },
        {},
    ),
    "nanoGPT #110": (
        "fsdp",
        {
            **{"layers": "12", "hidden": "768", "heads": "12", "ffn_hidden": "3072", "gated_mlp": "no"},
            **{"vocab": "50304", "tied_embeddings": "yes", "seq": "1024", "gpu": "A100-80GB-SXM", "num_gpus": "8"},
            **{"tp": "1", "pp": "1", "micro_batch": "12", "global_batch": "480", "zero_stage": "DDP"},
            **{"precision": "bf16", "recompute": "none", "flash_attention": "yes", "compile": "yes"},
            **{"iter_time_s": "0.562"},
        },
        {"gradient_accumulation_steps": "5"},
    ),
    "Finetune_LLMs #16": (
        "deepspeed",
        {
            **LLAMA_7B,
            **{"seq": "200", "gpu": "A100-80GB-SXM", "num_gpus": "4", "tp": "1", "pp": "1", "micro_batch": "1"},
            **{"global_batch": "128", "zero_stage": "3", "precision": "bf16", "recompute": "none"},
            **{"iter_time_s": "230"},
        },
        {"gradient_accumulation_steps": "32", "deepspeed": "ds_config_stage3.json"},
    ),
    "axolotl #1114": (
        "fsdp",
        {
            **{"layers": "22", "hidden": "2048", "heads": "32", "kv_heads": "4", "ffn_hidden": "5632"},
            **{"gated_mlp": "yes", "vocab": "32000", "num_gpus": "6", "gpus_per_node": "2", "tp": "1", "pp": "1"},
            **{"zero_stage": "FULL_SHARD", "cpu_offload": "cpu", "iter_time_s": "447.23"},
        },
        {"fsdp_config.fsdp_offload_params": "true"},
    ),
    "LLaMA-Factory #5014": (
        "deepspeed",
        {"gpu": "A800-80GB-SXM", "lora": "yes", "zero_stage": "3", "tp": "1", "pp": "1", "iter_time_s": "90"},
        {},
    ),
    "OLMo #762": (
        "fsdp",
        {
            **{"layers": "16", "hidden": "2048", "heads": "16", "ffn_hidden": "8192", "gated_mlp": "yes"},
            **{"vocab": "50304", "tied_embeddings": "yes", "seq": "2048", "num_gpus": "4", "tp": "1", "pp": "1"},
            **{"micro_batch": "2", "global_batch": "256", "zero_stage": "FULL_SHARD", "precision": "bf16"},
            **{"tokens_per_s": str(4 * 1747)},
        },
        {},
    ),
    "NeMo #9291": ("megatron-core", {"cluster": "dgx-h100", "iter_time_s": "1.25"}, {"NCCL_P2P_DISABLE": "1"}),
    "experiment-template #11": ("fsdp", {"gpu": "A40", "iter_time_s": "5.72"}, {"NCCL_IB_DISABLE": "1"}),
}
"""What people tell of public runs, by the rows of the page's table."""


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_public_runs_says_what_the_diagnosis_of_its_facts_says(name: str) -> None:
    trainer, cells, settings = CASES[name]
    run = UserRun("told", trainer=fact(trainer, 1))
    run.columns = {column: fact(value, 2 + line) for line, (column, value) in enumerate(cells.items())}
    run.settings = {each: fact(value, 50 + line) for line, (each, value) in enumerate(settings.items())}
    found = diagnose(run)
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| [{name}]"))
    says = row.split(" | ")[2]
    if found.factor is not None:
        assert f"{found.factor:.2f} times" in says
    if found.unexplained_seconds is not None and found.measured is not None:
        assert f"{found.unexplained_seconds / found.measured.step_seconds:.0%} not explained" in says
    assert (found.verdict is RunVerdict.NO_PRICE) == ("no prediction" in says)
    assert (found.verdict is RunVerdict.NOT_SLOW) == ("not slow" in says)
    for suspect in found.suspects:
        assert suspect.name in says
