"""nanotron: its YAML, and the same configuration as it prints it.

Source: src/nanotron/config of huggingface/nanotron.
"""

from __future__ import annotations

from diagnose.readers.columns.huggingface import fill_config
from diagnose.readers.said import Columns
from diagnose.runs import Fact, SaidBy

SECTIONS = ("model.model_config.", "model.", "parallelism.", "tokens.", "optimizer.", "general.")


def fill_nanotron(columns: Columns) -> None:
    """Put what nanotron's configuration says into columns."""
    settings, run = columns.settings, columns.run
    said = settings.fact("tp", "batch_accumulation_per_replica")
    note = "of the trainers that are priced, the one like nanotron"
    run.trainer = run.trainer or Fact("megatron-core", SaidBy.COMPUTED, said.at if said else None, note)
    fill_config(columns)
    columns.assumed("gated_mlp", True, "nanotron's Llama and Qwen are gated")
    for column in ("dp", "tp", "pp"):
        columns.whole(column, column)
    columns.whole("cp", "context_parallel_size")
    columns.whole("ep", "expert_parallel_size")
    columns.whole("seq", "sequence_length")
    columns.whole("micro_batch", "micro_batch_size")
    sizes = [columns.count(column) for column in ("dp", "tp", "pp")]
    if all(sizes):
        product = (sizes[0] or 1) * (sizes[1] or 1) * (sizes[2] or 1) * (columns.count("cp") or 1)
        columns.computed("num_gpus", product, said.at if said else None, "dp x tp x pp")
    accumulated = settings.fact("batch_accumulation_per_replica")
    micro, times = columns.count("micro_batch"), settings.whole("batch_accumulation_per_replica")
    if micro and times and sizes[0]:
        note = f"{times} x {micro} sequences of each of {sizes[0]} replicas"
        columns.computed("global_batch", micro * times * sizes[0], accumulated.at if accumulated else None, note)
    if mode := settings.text("tp_mode"):
        columns.put("sequence_parallel", "REDUCE_SCATTER" in mode.upper(), "tp_mode")
    columns.put("recompute", "full" if settings.truth("recompute_layer") else "none", "recompute_layer")
    columns.assumed("recompute", "none", "recompute_layer is not set")
    if (stage := settings.fact("zero_stage")) is not None:
        columns.take("zero_stage", stage)
    if settings.truth("accumulate_grad_in_fp32") is not None:
        columns.put(
            "gradient_dtype", "fp32" if settings.truth("accumulate_grad_in_fp32") else "bf16", "accumulate_grad_in_fp32"
        )
    columns.put("precision", {"float32": "fp32", "float16": "fp16"}.get(settings.text("dtype"), "bf16"), "dtype")
    columns.assumed("precision", "bf16", "nanotron's default")
