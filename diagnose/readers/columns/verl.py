"""verl: its Hydra overrides, of supervised training and of steps that generate what they learn from.

Source: verl/trainer/config of volcengine/verl.
"""

from __future__ import annotations

from diagnose.readers.columns.others import fill_other
from diagnose.readers.said import Columns
from diagnose.runs import Fact, SaidBy

ACTOR = "actor_rollout_ref.actor."
MICRO_BATCH = (
    *(f"{ACTOR}ppo_micro_batch_size_per_gpu", "data.micro_batch_size_per_gpu", "data.micro_batch_size"),
    f"{ACTOR}micro_batch_size_per_gpu",
)
CHECKPOINTING = ("actor_rollout_ref.model.enable_gradient_checkpointing", "model.enable_gradient_checkpointing")


def fill_verl(columns: Columns) -> None:
    """Put what verl's configuration says into columns; a step that generates responses has no price."""
    settings = columns.settings
    columns.whole("micro_batch", *MICRO_BATCH)
    columns.whole("seq", "data.max_length")
    prompt, response = (settings.whole(f"data.max_{part}_length") for part in ("prompt", "response"))
    prompts, said = settings.whole("data.train_batch_size"), settings.fact("data.train_batch_size")
    if prompt and response and prompts and said:
        responses = settings.whole("actor_rollout_ref.rollout.n") or 1
        note = f"{prompts} prompts, {responses} responses to each"
        columns.computed("global_batch", prompts * responses, said.at, note)
        columns.put("seq", prompt + response, "data.max_response_length", note="the longest prompt and response")
        columns.take("rollout", Fact(note, SaidBy.COMPUTED, said.at))
    else:
        columns.whole("global_batch", "data.train_batch_size")
    for name in CHECKPOINTING:
        if (answer := settings.truth(name)) is not None:
            columns.put("recompute", "full" if answer else "none", name)
    columns.assumed("recompute", "full", "verl's default since 2025")
    for column, axis in (("tp", "tensor"), ("pp", "pipeline")):
        columns.whole(column, f"{ACTOR}megatron.{axis}_model_parallel_size")
    if settings.text(f"{ACTOR}strategy", "model.strategy") != "megatron" and settings.has_arguments:
        columns.assumed("zero_stage", "FULL_SHARD", "FSDP is verl's default")
        for column in ("tp", "pp"):
            columns.assumed(column, 1, "FSDP is verl's default")
    for part in ("param", "optimizer"):
        name = f"{ACTOR}fsdp_config.{part}_offload"
        if settings.truth(name):
            columns.put("cpu_offload", "cpu", name)
    fill_other(columns)
