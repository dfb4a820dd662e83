"""Hugging Face: the model of a config.json, the arguments of its Trainer and of front ends to it, and DeepSpeed's JSON.

Source: training_args.py and trainer.py of huggingface/transformers; deepspeed/runtime/config.py; the configuration
files of LLaMA-Factory, axolotl and accelerate.
"""

from __future__ import annotations

import re
from pathlib import Path

from conf.compose.model_from import model_in
from conf.errors import ConfigError
from diagnose.readers.columns.words import words_of
from diagnose.readers.given import columns_of_shape
from diagnose.readers.said import Columns
from diagnose.runs import Fact, SaidBy

SHAPE, NAMES = words_of("huggingface"), words_of("huggingface_arguments")
LENGTH, MICRO_BATCH, GLOBAL_BATCH, STAGE = (NAMES[each] for each in ("length", "micro_batch", "global_batch", "stage"))
GENERATES, OFFLOADS, ATTENTION, ARGUMENTS, FSDP_STRATEGY, NOT_GATED = (
    NAMES[each] for each in ("generates", "offloads", "attention", "arguments", "fsdp_strategy", "not_gated")
)


def fill_huggingface(columns: Columns) -> None:
    """Put what a run of Hugging Face's Trainer, or of a script under DeepSpeed or FSDP, says into columns."""
    fill_config(columns)
    columns.whole("seq", *LENGTH)
    _fill_sharding(columns)
    _fill_batch(columns)
    _fill_choices(columns)
    if (generates := columns.settings.fact(*GENERATES)) is not None:
        columns.take("rollout", generates._replace(note="responses are generated in each step"))
    for column in ("tp", "pp"):
        columns.assumed(column, 1, "neither the Trainer nor ZeRO splits a layer or the stack of layers")


def fill_config(columns: Columns) -> None:
    """Put the model: as `model_from` reads its file, or by the names of the sizes where it stands in a log."""
    kind = columns.settings.fact("model_type")
    if kind is not None and kind.at is not None and kind.said_by is SaidBy.FILE and kind.at.file.endswith(".json"):
        try:
            shape = columns_of_shape(model_in(Path(kind.at.file)))
        except ConfigError as error:
            columns.assumed("model", kind.value, f"its sizes by their names alone: {error.problem}")
        else:
            shape.pop("seq")  # of its positions, not of the sequences that were trained
            for column, value in shape.items():
                at = _place(columns, column)
                columns.take(column, Fact(value, SaidBy.FILE, at.at if at else kind.at))
            return
    for column, names in SHAPE.items():
        columns.whole(column, *names)
    if kind is not None:
        columns.put("gated_mlp", kind.value not in NOT_GATED, "model_type", note=f"as {kind.value} has it")
    columns.truth("tied_embeddings", "tie_word_embeddings")
    if columns.count("num_experts") and not columns.count("moe_ffn"):
        columns.whole("moe_ffn", "intermediate_size")


def _place(columns: Columns, column: str) -> Fact | None:
    return columns.settings.fact(
        *SHAPE.get(column, ()), *(("tie_word_embeddings",) if column == "tied_embeddings" else ())
    )


def _fill_sharding(columns: Columns) -> None:
    """Who shares what out: DeepSpeed's stage, FSDP's strategy, or nobody."""
    settings, run = columns.settings, columns.run
    stage, named = settings.fact(*STAGE), settings.fact("deepspeed")
    if stage is not None or named is not None:
        said = stage or named
        assert said is not None
        run.trainer = run.trainer or Fact("deepspeed", SaidBy.COMPUTED, said.at, "by its ZeRO")
        digit = next((sign for sign in said.value if stage and sign in "0123"), None) or _stage_in_name(said.value)
        if digit is not None:
            columns.take("zero_stage", said._replace(value=digit))
        elif stage is not None:
            columns.take("zero_stage", stage)
        if named is not None and "offload" in named.value.rpartition("/")[2].lower():
            columns.put("cpu_offload", "cpu", "deepspeed", note="by the name of DeepSpeed's file")
    elif (strategy := _fsdp(columns)) is not None:
        columns.take("zero_stage", strategy)
    elif settings.is_known(*ARGUMENTS, *MICRO_BATCH):
        _assume_sharding(columns)
    like = "deepspeed" if (run.program or "").startswith("deepspeed") else "fsdp"
    run.trainer = run.trainer or Fact(like, SaidBy.COMPUTED, None, "of the trainers that are priced, the one like it")
    for name in OFFLOADS:
        if (place := settings.text(name)) in ("cpu", "nvme"):
            # The optimizer in the host's memory has a price.
            columns.put("offload_optimizer" if "optimizer" in name and place == "cpu" else "cpu_offload", place, name)
    for name in ("fsdp_config.fsdp_offload_params", "fsdp_offload_params", "fsdp_config.offload_params"):
        if settings.truth(name):
            columns.put("cpu_offload", "cpu", name)


def _assume_sharding(columns: Columns) -> None:
    """What shares out where no file says it: as accelerate's file is called that is not there, else nobody."""
    named = columns.settings.text("config_file").rpartition("/")[2]
    stage = _stage_in_name(named) or ("FULL_SHARD" if "fsdp" in named.lower() else None)
    said = f"; {named}, which may say more, is not given" if named else ""
    columns.assumed(
        "zero_stage", stage or "DDP", f"by the name {named}" if stage else f"neither DeepSpeed nor FSDP is named{said}"
    )


def _stage_in_name(path: str) -> str | None:
    """The stage that the name of a DeepSpeed file tells: `ds_zero3.json`, `ds_z2_config.json`."""
    name = path.lower()
    return next(
        (stage for stage in "3210" if f"zero{stage}" in name or f"z{stage}" in name or f"stage{stage}" in name), None
    )


MOST_TRAINED = 0.9
"""A log that counts less of its parameters as trained is of LoRA, or of some such work."""
NUMBERED = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "DDP", "4": "HYBRID_SHARD"}


def _fsdp(columns: Columns) -> Fact | None:
    """FSDP's strategy, by its word, or by accelerate's number."""
    settings = columns.settings
    if (strategy := settings.fact(*FSDP_STRATEGY)) is not None:
        return strategy._replace(value=NUMBERED.get(strategy.value, strategy.value.rpartition(".")[2]))
    if settings.text("distributed_type") == "FSDP" or settings.text("fsdp_version") == "2":
        said = settings.fact("distributed_type", "fsdp_version")
        return said._replace(value="FULL_SHARD") if said else None
    named = settings.fact("fsdp")
    word = re.search(r"full_shard|shard_grad_op|hybrid_shard|no_shard", named.value.lower()) if named else None
    return named._replace(value=word[0].upper()) if named and word else None


def _fill_batch(columns: Columns) -> None:
    """Sequences of a pass and of a step; of the two, the devices and the accumulation the missing one follows."""
    settings = columns.settings
    columns.whole("micro_batch", *MICRO_BATCH)
    columns.whole("global_batch", *GLOBAL_BATCH)
    micro, total = columns.count("micro_batch"), columns.count("global_batch")
    accumulated = settings.whole("gradient_accumulation_steps")
    said = settings.fact("total_train_batch_size", "train_batch_size", "gradient_accumulation_steps")
    if micro and total and accumulated and total % (micro * accumulated) == 0:
        note = f"a batch of {total} from {accumulated} x {micro} sequences of each device"
        columns.computed("num_gpus", total // (micro * accumulated), said.at if said else None, note)
    devices = columns.count("num_gpus")
    if micro and devices:
        note = f"{accumulated or 1} x {micro} sequences of each of {devices} devices"
        if accumulated:
            columns.computed("global_batch", micro * accumulated * devices, said.at if said else None, note)
        elif total is None:
            columns.assumed("global_batch", micro * devices, f"{note}: no accumulation is named")


def _fill_choices(columns: Columns) -> None:
    _fill_recompute(columns)
    _fill_precision(columns)
    settings = columns.settings
    if (kernel := settings.fact(*ATTENTION)) is not None:
        name = kernel.value.lower().strip("'\"")
        value = (
            "no"
            if name in ("eager", "disabled", "false", "none")
            else "yes"
            if name in ("true", "fa2", "auto")
            else name
        )
        columns.take("flash_attention", kernel._replace(value=value))
    columns.truth("compile", "torch_compile")
    if (rank := settings.fact("lora_r", "lora_rank", "r")) is not None and _is_lora(columns):
        columns.take("lora_rank", rank)
    elif _is_part_trained(columns):
        columns.put("lora", True, "trainable_parameters", note="a part of the parameters is trained")
    elif _is_lora(columns):
        columns.put("lora", True, "adapter", "finetuning_type", "use_peft", "use_lora")
    if (optimizer := settings.text("optim", "optimizer.type", "optimizer_name").lower()) and "adam" not in optimizer:
        columns.put("optimizer", optimizer, "optim", "optimizer.type", "optimizer_name")


def _is_part_trained(columns: Columns) -> bool:
    trained, of = columns.settings.whole("trainable_parameters"), columns.settings.whole("num_parameters")
    return trained is not None and of is not None and trained < MOST_TRAINED * of


def _is_lora(columns: Columns) -> bool:
    words = columns.settings.text("adapter", "finetuning_type").lower()
    return "lora" in words or bool(columns.settings.truth("use_peft") or columns.settings.truth("use_lora"))


def _fill_recompute(columns: Columns) -> None:
    settings, names = columns.settings, ("gradient_checkpointing", "fsdp_config.fsdp_activation_checkpointing")
    answers = [answer for name in names if (answer := settings.truth(name)) is not None]
    if settings.truth("disable_gradient_checkpointing") or any(answers):
        is_on = not settings.truth("disable_gradient_checkpointing")
        columns.put("recompute", "full" if is_on else "none", *names, "disable_gradient_checkpointing")
    elif settings.is_known("finetuning_type"):
        columns.assumed("recompute", "full", "LLaMA-Factory recomputes unless disable_gradient_checkpointing is set")
    elif answers:
        columns.put("recompute", "none", *names)
    elif settings.is_known(*ARGUMENTS):
        columns.assumed("recompute", "none", "gradient_checkpointing is not set")


def _fill_precision(columns: Columns) -> None:
    settings = columns.settings
    for dtype, printed in (("bf16", "bfloat16_enabled"), ("fp16", "fp16_enabled")):
        on = [name for name in (dtype, f"{dtype}.enabled", printed) if settings.truth(name)]
        columns.put("precision", dtype, *on)
    mixed = settings.fact("mixed_precision", "precision", "pure_bf16")
    if mixed is not None and (word := re.search(r"bf16|fp16|true", mixed.value.lower())):
        columns.take("precision", mixed._replace(value=word[0].replace("true", "bf16")))
    loaded = settings.fact("torch_dtype", "dtype")
    if loaded is not None and (word := re.search(r"bfloat16|bf16|float16|fp16|float32|fp32", loaded.value.lower())):
        narrow = {"bf": "bf16", "fl": f"fp{word[0][-2:]}"}.get(word[0][:2], word[0])
        columns.assumed("precision", narrow, f"its weights are loaded in {loaded.value}")
    for name in ("bf16", "bf16.enabled"):
        if settings.text(name) == "auto":
            columns.assumed("precision", "bf16", f"{name} = auto, and nothing settles it")
    if settings.is_known(*ARGUMENTS):
        columns.assumed("precision", "fp32", "neither bf16 nor fp16 is set")
