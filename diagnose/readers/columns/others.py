"""Trainers whose configuration says little else than sizes: nanoGPT, nanochat, torchtune, LitGPT, llm-foundry, MaxText
and the command line of Lightning.

Source: train.py of karpathy/nanoGPT; the recipes of pytorch/torchtune; litgpt/args.py; the YAML files of
mosaicml/llm-foundry; MaxText's base.yml.
"""

from __future__ import annotations

import math
import re

from diagnose.readers.columns.huggingface import fill_config
from diagnose.readers.columns.words import words_of
from diagnose.readers.said import Columns, number
from diagnose.runs import Fact, SaidBy

TRAINERS = dict.fromkeys(
    (
        *("torchtune", "litgpt", "llm-foundry", "nanogpt", "nanochat", "llm.c"),
        *("olmo", "fms-fsdp", "nemo-automodel", "lightning"),
    ),
    "fsdp",
)
"""Programs that are like a trainer that is priced; of the others only what they say is taken."""
WHOLE = words_of("other")
RECOMPUTES, SECTIONS = (words_of("other_choices")[each] for each in ("recomputes", "sections"))
NAMES = tuple(name for names in WHOLE.values() for name in names)
ACCUMULATIONS = (
    *("gradient_accumulation_steps", "grad_accum_steps", "grad_accum", "accumulation_steps"),
    "accumulate_grad_batches",
)
DTYPES = ("precision", "dtype", "weight_dtype")


def fill_other(columns: Columns) -> None:
    """Put the sizes, the types and the choices that these trainers name."""
    settings, run = columns.settings, columns.run
    if (name := TRAINERS.get(run.program or "")) is not None:
        note = f"of the trainers that are priced, the one like {run.program}"
        run.trainer = run.trainer or Fact(name, SaidBy.COMPUTED, None, note)
    fill_config(columns)
    for column, names in WHOLE.items():
        columns.whole(column, *names)
    if run.program is not None:  # of which it is known what it calls its batch
        columns.whole("micro_batch", "batch_size")
    if run.program == "lightning":
        _fill_strategy(columns)
    if run.program in ("litgpt", "lightning"):
        per_node, nodes = settings.whole("devices"), settings.whole("num_nodes") or 1
        columns.put("num_gpus", per_node * nodes if per_node else None, "devices")
    if run.program == "maxtext":
        _fill_maxtext(columns)
    _fill_batch(columns)
    _fill_choices(columns)
    for column in ("tp", "pp") if run.program in (*TRAINERS, "maxtext") else ():
        columns.assumed(column, 1, f"{run.program} has no flag of it here")


def _fill_strategy(columns: Columns) -> None:
    """Who shares what out, by the strategy of Lightning's Trainer."""
    strategy = columns.settings.text("strategy", "strategy.class_path").lower()
    stage = re.search(r"stage_?(\d)", strategy)
    value = stage[1] if stage else "FULL_SHARD" if "fsdp" in strategy else "DDP" if "ddp" in strategy else None
    columns.put("zero_stage", value, "strategy", "strategy.class_path")
    if not strategy or strategy == "auto":
        columns.assumed("zero_stage", "DDP", "Lightning's default on several devices")


def _fill_maxtext(columns: Columns) -> None:
    """The devices by the mesh that MaxText is given, and what its policy of rematerialization keeps."""
    settings = columns.settings
    axes = [name for name in settings.known if re.fullmatch(r"(?:ici|dcn)_\w+_parallelism", name)]
    sizes = [number(settings.known[name].value) for name in axes]
    if sizes and all(size is not None and size > 0 for size in sizes):
        note = "the product of " + ", ".join(axes)
        columns.computed("num_gpus", int(math.prod(size or 1 for size in sizes)), settings.known[axes[0]].at, note)
    if (shards := settings.fact("ici_fsdp_parallelism")) is not None and shards.value != "1":
        columns.put("zero_stage", "FULL_SHARD", "ici_fsdp_parallelism", note="weights lie in pieces over axis fsdp")
    elif shards is None and settings.has_arguments:
        columns.assumed("zero_stage", "FULL_SHARD", "MaxText's default: axis fsdp takes all devices of a slice")
    if policy := settings.text("remat_policy"):
        columns.put("recompute", {"full": "full", "save_everything": "none"}.get(policy, "selective"), "remat_policy")
    elif settings.has_arguments:
        columns.assumed("recompute", "full", "MaxText's default")


def _fill_batch(columns: Columns) -> None:
    settings = columns.settings
    micro, devices, times = (
        columns.count("micro_batch"),
        columns.count("num_gpus"),
        settings.whole(*ACCUMULATIONS),
    )
    tokens, seq, program = settings.whole("tokens_per_step"), columns.count("seq"), columns.run.program
    if tokens and seq and tokens % seq == 0:
        said = settings.fact("tokens_per_step")
        columns.computed(
            "global_batch", tokens // seq, said.at if said else None, f"{tokens:,} tokens a step of {seq} each"
        )
    elif (
        micro
        and (devices or program == "nanogpt")
        and (times or program in ("torchtune", "maxtext", "lightning"))
        and (program or columns.count("tp"))
    ):
        # nanoGPT's accumulation is of all devices together, and shared out among them.
        others = (columns.count("tp") or 1) * (columns.count("pp") or 1) * (columns.count("cp") or 1)
        share = 1 if program == "nanogpt" or not devices else max(1, devices // others)
        of = f"{share} replicas" if others > 1 else f"{devices} devices"
        note = f"{times or 1} x {micro} sequences" + (f" of each of {of}" if share > 1 else "")
        columns.computed("global_batch", micro * share * (times or 1), None, note)


def _fill_choices(columns: Columns) -> None:
    settings = columns.settings
    dtype = settings.fact(*DTYPES)
    if dtype is not None and (word := re.search(r"bf16|bfloat16|fp16|float16|16|fp32|float32|32", dtype.value.lower())):
        columns.take(
            "precision", dtype._replace(value="bf16" if word[0][:2] == "bf" else "fp32" if "32" in word[0] else "fp16")
        )
    for name in RECOMPUTES:
        if (answer := settings.truth(name)) is not None:
            columns.put("recompute", "full" if answer else "none", name)
    if settings.has_arguments:
        columns.assumed("recompute", "none", "nothing says that layers are recomputed")
    columns.truth("compile", "compile")
    columns.whole("zero_stage", "zero_stage")
    columns.truth("tied_embeddings", "tie_word_embeddings")
    if kernel := settings.text("attn_impl"):
        columns.put("flash_attention", kernel, "attn_impl")
    if columns.run.program in ("nanogpt", "nanochat"):
        columns.assumed("zero_stage", "DDP", f"{columns.run.program} replicates all")
    elif (strategy := settings.fact("sharding_strategy")) is not None:
        columns.take("zero_stage", strategy)
    elif columns.run.program in TRAINERS and settings.has_arguments:
        columns.assumed("zero_stage", "FULL_SHARD", f"{columns.run.program}'s default on several devices")
