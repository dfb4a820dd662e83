"""torchtitan: its TOML, its flags and what it prints, of every version since 2024.

Source: torchtitan/config/job_config.py and torchtitan/models/llama3/model of pytorch/torchtitan, 2024 to 2026.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from conf.folders import package_content
from diagnose.readers.columns.words import words_of
from diagnose.readers.said import Columns
from diagnose.runs import Fact, SaidBy

PARALLEL = ("parallelism", "training", "experimental")
"""The sections in which versions keep the sizes of a layout."""
SHAPE = words_of("torchtitan")
OF_FLAVOR = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "ffn_hidden": "ffn_hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "vocab": "vocab_size",
}
LLAMA = ("llama3", "llama3_ft", "llama2", "llama")


def fill_torchtitan(columns: Columns) -> None:
    """Put what torchtitan's configuration says into columns."""
    run = columns.run
    run.program = run.program or "torchtitan"
    run.trainer = run.trainer or Fact("torchtitan", SaidBy.COMPUTED, _any(columns), "by its words")
    _fill_shape(columns)
    _fill_layout(columns)
    _fill_batch(columns)
    _fill_choices(columns)
    columns.assumed("tflops_count", "model", "torchtitan counts no recomputation")


def _fill_shape(columns: Columns) -> None:
    """The model by what is printed of it, else by the name of one of its sizes of Llama 3."""
    settings = columns.settings
    for column, names in SHAPE.items():
        columns.whole(column, *names)
    name, flavor = settings.text("model.name"), settings.fact("model.flavor") or _named_by_its_function(columns)
    if "model_id" not in settings.known and columns.count("layers") and (dim := columns.count("hidden")):
        _fill_ffn(columns, dim)
        columns.assumed("gated_mlp", True, "its decoders are all gated")
    elif flavor is not None and (name in LLAMA or not name) and (shape := _flavors().get(flavor.value.strip("'\""))):
        for column, key in OF_FLAVOR.items():
            columns.take(column, flavor._replace(value=str(shape[key]), note=f"Llama 3 {flavor.value}"))
        columns.take("gated_mlp", flavor._replace(value="yes", note=f"Llama 3 {flavor.value}"))
    elif flavor is not None and name:  # of another model, which may be known by its whole name
        settings.known["model_id"] = flavor._replace(value=f"{name}-{flavor.value}")
    columns.assumed("tied_embeddings", False, "its Llama 3 has an output head of its own")
    columns.whole("seq", "training.seq_len", "seq_len")


def _named_by_its_function(columns: Columns) -> Fact | None:
    """The size that `--module llama3 --config llama3_8b` names, as versions without a TOML are started."""
    said = columns.settings.fact("config", "job.config_file")
    size = re.search(r"llama3(?:_1)?_(\d+b)\b", said.value) if said else None
    return said._replace(value=size[1].upper()) if said and size else None


def _fill_ffn(columns: Columns, dim: int) -> None:
    """The width of the feed-forward layer as torchtitan's TransformerBlock works it out."""
    settings = columns.settings
    multiplier, multiple = settings.fact("ffn_dim_multiplier"), settings.whole("multiple_of") or 256
    if (stated := settings.whole("hidden_dim", "inter_dim")) is not None:
        columns.put("ffn_hidden", stated, "hidden_dim", "inter_dim")
        return
    width = int(2 * 4 * dim / 3)
    try:
        width = int(float(multiplier.value) * width) if multiplier else width
    except ValueError:
        return
    at = multiplier.at if multiplier else None
    columns.computed(
        "ffn_hidden", -(-width // multiple) * multiple, at, "8/3 of the width, times ffn_dim_multiplier, rounded up"
    )


@cache
def _flavors() -> dict[str, Any]:
    return dict(package_content("trainer/torchtitan.yaml")["flavors"])


def _degree(columns: Columns, name: str) -> tuple[int | None, tuple[str, ...]]:
    names = tuple(f"{section}.{name}" for section in PARALLEL)
    return columns.settings.whole(*names), names


def _fill_layout(columns: Columns) -> None:
    settings = columns.settings
    is_meshed = any(name.startswith("mesh.") for name in settings.known)  # which names every axis above 1
    for column, name, axis in (
        ("tp", "tensor_parallel_degree", "tp"),
        ("pp", "pipeline_parallel_degree", "pp"),
        ("cp", "context_parallel_degree", "cp"),
        ("ep", "expert_parallel_degree", "ep"),
    ):
        columns.whole(column, f"mesh.{axis}", *(f"{section}.{name}" for section in PARALLEL))
        if column in ("tp", "pp") and (settings.has_arguments or is_meshed):
            columns.assumed(column, 1, "torchtitan's default")
    shards, names = _degree(columns, "data_parallel_shard_degree")
    replicas, of_replicas = _degree(columns, "data_parallel_replicate_degree")
    shards = columns.settings.whole("mesh.dp_shard") or shards
    replicas = columns.settings.whole("mesh.dp_replicate") or replicas
    others = (columns.count("tp") or 1) * (columns.count("pp") or 1) * (columns.count("cp") or 1)
    if shards and not columns.count("num_gpus"):
        columns.computed("num_gpus", shards * (replicas or 1) * others, None, "the product of the degrees")
    devices = columns.count("num_gpus")
    if devices and not shards:
        shards = max(1, devices // others // (replicas or 1))
    _fill_sharding(columns, shards, replicas or 1, (*names, *of_replicas))
    if (columns.count("tp") or 1) > 1:
        columns.assumed("sequence_parallel", True, "torchtitan shards sequences beside tensor ranks")
    columns.truth("async_tp", "parallelism.enable_async_tensor_parallel", "")
    policy = columns.settings.text("parallelism.fsdp_reshard_after_forward")
    if policy in ("always", "never"):
        columns.put("reshard_after_forward", policy == "always", "parallelism.fsdp_reshard_after_forward")
    _fill_schedule(columns)


def _fill_sharding(columns: Columns, shards: int | None, replicas: int, names: tuple[str, ...]) -> None:
    if shards == 1 and replicas > 1:
        columns.put("zero_stage", "DDP", "sharding", *names)
    elif replicas > 1:
        columns.put("zero_stage", "FSDP2", "sharding", *names)
        columns.put("zero_group_size", shards, *names, note=f"{replicas} groups of {shards}")
    else:
        columns.put("zero_stage", "FSDP2", "sharding", *names)
        columns.assumed("zero_stage", "FSDP2", "torchtitan's default: weights are shared out among all replicas")


def _fill_schedule(columns: Columns) -> None:
    each, names = _degree(columns, "pipeline_parallel_layers_per_stage")
    layers, stages = columns.count("layers"), columns.count("pp") or 1
    schedule = columns.settings.text(*(f"{section}.pipeline_parallel_schedule" for section in PARALLEL))
    if stages > 1 and "nterleaved" in schedule:
        chunks = -(-layers // each) // stages if each and layers else 2
        columns.put("vpp", max(1, chunks), *names, *(f"{section}.pipeline_parallel_schedule" for section in PARALLEL))


def _fill_batch(columns: Columns) -> None:
    """The sequences of a replica, of which a pipeline makes micro-batches; without one they are a micro-batch."""
    settings, stages = columns.settings, columns.count("pp") or 1
    local = settings.whole("training.local_batch_size", "training.batch_size")
    names = ("training.local_batch_size", "training.batch_size")
    if stages > 1:
        micro, of_micro = _degree(columns, "pipeline_parallel_microbatch_size")
        columns.put("micro_batch", micro, *of_micro)
        columns.assumed("micro_batch", 1, "torchtitan's default beside a pipeline")
    else:
        columns.put("micro_batch", local, *names)
    columns.whole("global_batch", "training.global_batch_size")
    batch, others = columns.count("global_batch"), (columns.count("tp") or 1) * stages * (columns.count("cp") or 1)
    if local and batch and columns.count("num_gpus") is None:
        columns.computed("num_gpus", batch // local * others, None, f"{batch} sequences of all, {local} of a replica")
    devices = columns.count("num_gpus")
    if local and devices:
        others = (columns.count("tp") or 1) * stages * (columns.count("cp") or 1)
        replicas = max(1, devices // others)
        note = f"local batch {local} on {replicas} replicas, without accumulation"
        said = settings.fact(*names)
        columns.computed("global_batch", local * replicas, said.at if said else None, note)


def _fill_choices(columns: Columns) -> None:
    settings = columns.settings
    said = settings.known.get("activation_checkpoint.mode")  # where `none` is a mode
    mode, option = said.value if said else "", settings.text("activation_checkpoint.selective_ac_option")
    if mode == "selective":
        every = f"selective (every {option} layer)" if option.isdigit() and option != "1" else None
        text = every or ("full" if option == "1" else "selective (per op)")
        columns.put("recompute", text, "activation_checkpoint.mode")
    elif mode:
        columns.put("recompute", mode, "activation_checkpoint.mode")
    param = settings.text("training.mixed_precision_param").rpartition(".")[2] or settings.text("training.dtype")
    columns.put(
        "precision",
        {"float32": "fp32", "float16": "fp16"}.get(param, "bf16"),
        "training.mixed_precision_param",
        "training.dtype",
    )
    columns.assumed("precision", "bf16", "torchtitan's default")
    converters = settings.text("model.converters") + settings.text("training.converters")
    is_fp8 = "float8" in converters or settings.truth("float8.enable_float8_linear") or settings.truth("float8.active")
    if is_fp8:
        columns.put("matmul_precision", "fp8", "model.converters", "float8.enable_float8_linear", "float8.active")
        recipe = settings.text("float8.recipe_name", "quantize.linear.float8.recipe_name")
        columns.put("fp8_recipe", recipe or None, "float8.recipe_name", "quantize.linear.float8.recipe_name")
    elif "mx" in converters:
        columns.put("matmul_precision", "mxfp8", "model.converters")
    _fill_compile(columns)
    columns.assumed("flash_attention", "sdpa", "torchtitan's default")
    if (optimizer := settings.text("optimizer.name").lower()) and "adam" not in optimizer:
        columns.put("optimizer", optimizer, "optimizer.name")


def _fill_compile(columns: Columns) -> None:
    settings, names = columns.settings, ("compile.layers", "compile.enable", "training.compile")
    answers = [answer for name in names if (answer := settings.truth(name)) is not None]
    if not answers:
        if settings.has_arguments:
            columns.assumed("compile", False, "torchtitan's default")
        return
    columns.put("compile", any(answers), *(name for name in names if settings.truth(name) == any(answers)))
    components = settings.text("compile.components")
    if any(answers) and settings.is_known("compile.enable", "compile.loss"):
        is_of_loss = "loss" in components or not components
        columns.put("compile_loss", is_of_loss, "compile.components", "compile.enable", "compile.loss")


def _any(columns: Columns) -> Any:
    fact = columns.settings.fact("model.name", "model.flavor", "training.seq_len", "parallelism.tensor_parallel_degree")
    return fact.at if fact else None
