"""Megatron-LM, Megatron-Core, Megatron-DeepSpeed and gpt-neox: their arguments as columns.

Source: megatron/training/arguments.py of NVIDIA/Megatron-LM, its versions of 2020 to 2026; deepspeed_config of
EleutherAI/gpt-neox.
"""

from __future__ import annotations

import json

from diagnose.readers.columns.words import words_of
from diagnose.readers.said import Columns, number
from diagnose.runs import Fact, LogLine, SaidBy

WHOLE = words_of("megatron")
OF_CORE = (
    *("context_parallel_size", "use_mcore_models", "transformer_impl", "use_flash_attn", "overlap_grad_reduce"),
    *("use_distributed_optimizer", "attention_backend", "swiglu", "overlap_param_gather", "use_megatron_fsdp"),
)
OF_DEEPSPEED = ("deepspeed_config", "zero_stage", "deepspeed", "ds_pipeline_enabled")
SHARDED = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}


def fill_megatron(columns: Columns) -> None:
    """Put what Megatron's arguments say into columns, and name the trainer by which of them there are."""
    settings, run = columns.settings, columns.run
    _name_trainer(columns)
    for column, names in WHOLE.items():
        columns.whole(column, *names)
    # Before 2021 a rank's batch was called the batch; a fact that both have says it of every version.
    if not settings.is_known("micro_batch_size"):
        columns.whole("micro_batch", "batch_size")
    if settings.has_arguments:
        for column in ("tp", "pp"):
            if not settings.is_known(*WHOLE[column]):
                columns.assumed(column, 1, "no flag of it is given")
    _fill_model(columns)
    _fill_experts(columns)
    _fill_layout(columns)
    _fill_recompute(columns)
    _fill_precision(columns)
    _fill_kernels(columns)
    if run.trainer is not None and run.trainer.value == "megatron-core":
        columns.assumed("tflops_count", "model", "Megatron-LM counts no recomputation since 2023")


def _name_trainer(columns: Columns) -> None:
    settings, run = columns.settings, columns.run
    found = [
        fact for name in OF_DEEPSPEED if (fact := settings.fact(name)) and fact.value.lower() not in ("false", "0")
    ]
    is_neox = settings.is_known("pipe_parallel_size")
    if found or is_neox:
        run.program = "gpt-neox" if is_neox else "megatron-deepspeed"
        source = found[0] if found else settings.fact("pipe_parallel_size")
        run.trainer = run.trainer or Fact(
            "megatron-deepspeed", SaidBy.COMPUTED, source.at if source else None, "by its arguments"
        )
        return
    by_swift = settings.fact("program") if settings.text("program") in ("megatron", "swift") else None
    core = by_swift or next((fact for name in OF_CORE if (fact := settings.known.get(name))), None)
    some = core or settings.fact("tensor_model_parallel_size", "model_parallel_size", "num_layers")
    name = "megatron-core" if core else "megatron-lm"
    run.program = run.program or "megatron"
    run.trainer = run.trainer or Fact(name, SaidBy.COMPUTED, some.at if some else None, "by its arguments")


def _fill_model(columns: Columns) -> None:
    settings = columns.settings
    hidden, gated = columns.count("hidden"), settings.truth("swiglu")
    columns.truth("gated_mlp", "swiglu")
    if hidden and gated and settings.whole("ffn_hidden_size") is None:
        columns.computed(
            "ffn_hidden", int(4 * hidden * 2 / 3) // 64 * 64, _line(columns, "swiglu"), "as Megatron sizes SwiGLU"
        )
    elif hidden and not gated:
        columns.assumed("ffn_hidden", 4 * hidden, "as Megatron sizes it where no flag does")
    if settings.truth("group_query_attention"):
        columns.whole("kv_heads", "num_query_groups")
    elif settings.whole("num_key_value_heads"):
        columns.whole("kv_heads", "num_key_value_heads")
    untied = settings.truth("untie_embeddings_and_output_weights", "share_embeddings_and_output_weights")
    if untied is None and (no_tying := settings.truth("no_weight_tying")) is not None:
        columns.put("tied_embeddings", not no_tying, "no_weight_tying")
    if untied is not None:
        columns.put(
            "tied_embeddings", not untied, "untie_embeddings_and_output_weights", "share_embeddings_and_output_weights"
        )
    if (width := columns.count("head_dim")) and hidden == width * (columns.count("heads") or 0):
        del columns.run.columns["head_dim"]
    if settings.truth("multi_latent_attention"):
        plain, rotary, value = (
            settings.whole(name) or usual
            for name, usual in (("qk_head_dim", 128), ("qk_pos_emb_head_dim", 64), ("v_head_dim", 128))
        )
        query = f", q_lora {rank}" if (rank := settings.whole("q_lora_rank")) else ""
        text = f"{plain}+{rotary} / v {value}{query}, kv_lora {settings.whole('kv_lora_rank') or 32}"
        columns.put("mla", text, "multi_latent_attention")
    columns.whole("mtp_layers", "mtp_num_layers")
    _fill_window(columns)


def _fill_window(columns: Columns) -> None:
    fact = columns.settings.fact("window_size")
    first = fact.value.strip("([ ").replace(",", " ").split()[:1] if fact else []
    if fact and first and (number(first[0]) or -1) > 0:
        columns.put("attention_window", int(first[0]), "window_size")


def _fill_experts(columns: Columns) -> None:
    settings = columns.settings
    if columns.count("num_experts") in (None, 1):
        for column in ("top_k", "moe_ffn", "shared_expert_ffn", "etp", "num_experts"):
            columns.run.columns.pop(column, None)
        return
    if (kind := settings.text("moe_token_dispatcher_type")) == "flex":
        columns.put("dispatcher", settings.text("moe_flex_dispatcher_backend") or "deepep", "moe_token_dispatcher_type")
    elif kind == "alltoall":
        columns.put("dispatcher", kind, "moe_token_dispatcher_type")
    columns.truth("grouped_gemm", "moe_grouped_gemm")
    columns.truth("overlap_moe", "overlap_moe_expert_parallel_comm")
    if (capacity := settings.fact("moe_expert_capacity_factor")) and (number(capacity.value) or 0) > 0:
        columns.put("capacity_factor", capacity.value, "moe_expert_capacity_factor")
    _fill_dense_layers(columns)


def _fill_dense_layers(columns: Columns) -> None:
    """The first layers, without experts, of a pattern such as `([0]*3+[1]*58)`; no other pattern is priced."""
    fact = columns.settings.fact("moe_layer_freq")
    if fact is None or fact.value.strip("'\"") == "1":
        return
    pattern = _pattern(fact.value)
    dense = pattern.index(1) if pattern and 1 in pattern else None
    if pattern and dense is not None and all(pattern[dense:]):
        columns.put("dense_layers", dense, "moe_layer_freq")
    else:
        columns.put("moe_layer_freq", fact.value, "moe_layer_freq")


def _pattern(text: str) -> list[int]:
    """The zeros and ones of a sum of repeated lists; empty where it is something else."""
    found: list[int] = []
    for part in text.strip("'\"() ").replace(" ", "").split("+"):
        inside, _, times = part.partition("*")
        try:
            listed = json.loads(inside.strip("()"))
        except ValueError:
            return []
        if not isinstance(listed, list) or not (times or "1").isdigit() or len(listed) * int(times or 1) > 10_000:
            return []
        found += listed * int(times or 1)
    return found


def _fill_layout(columns: Columns) -> None:
    settings = columns.settings
    columns.whole("vpp", "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank")
    each, layers, stages = (
        settings.whole("num_layers_per_virtual_pipeline_stage"),
        columns.count("layers"),
        columns.count("pp"),
    )
    if each and layers and stages and stages > 1 and layers % (stages * each) == 0:
        note = f"{layers} layers in chunks of {each} on {stages} stages"
        columns.computed("vpp", layers // stages // each, _line(columns, "num_layers_per_virtual_pipeline_stage"), note)
    columns.truth("sequence_parallel", "sequence_parallel")
    # A part of the optimizer on the host has no price.
    is_whole = settings.text("optimizer_offload_fraction") in (None, "", "1", "1.0")
    columns.truth("offload_optimizer" if is_whole else "cpu_offload", "optimizer_cpu_offload", "")
    sharding = settings.text("data_parallel_sharding_strategy")
    if settings.truth("use_megatron_fsdp") or settings.truth("use_custom_fsdp"):
        columns.put("zero_stage", SHARDED.get(sharding, "3"), "use_megatron_fsdp", "use_custom_fsdp")
    elif settings.truth("use_torch_fsdp2"):
        columns.put("zero_stage", "FSDP2", "use_torch_fsdp2")
    elif (stage := settings.fact("zero_stage", "zero_optimization.stage", "zero_optimization_stage")) is not None:
        columns.take("zero_stage", stage)
    elif settings.truth("use_distributed_optimizer") is not None:
        columns.put(
            "zero_stage", "1" if settings.truth("use_distributed_optimizer") else "0", "use_distributed_optimizer"
        )
    _fill_devices(columns)


def _fill_devices(columns: Columns) -> None:
    """Devices and batches that follow from others: all but one are in every dump."""
    sizes = [columns.count(name) or 1 for name in ("tp", "pp", "cp")]
    replicas, micro_batch = columns.count("dp"), columns.count("micro_batch")
    if replicas is None and (devices := columns.count("num_gpus")):
        replicas = devices // max(1, sizes[0] * sizes[1] * sizes[2])
    micro_batches = columns.settings.whole("num_micro_batches", "gradient_accumulation_steps", "gas")
    if replicas and micro_batch and not columns.count("global_batch"):
        if micro_batches:
            note = f"{micro_batches} micro-batches of {micro_batch} on {replicas} replicas"
            columns.computed("global_batch", micro_batch * replicas * micro_batches, None, note)
        else:
            columns.assumed(
                "global_batch",
                micro_batch * replicas,
                "one micro-batch of each replica, as without --global-batch-size",
            )


def _fill_recompute(columns: Columns) -> None:
    settings = columns.settings
    names = (
        "recompute_granularity",
        "recompute_activations",
        "checkpoint_activations",
        "activations_checkpoint_method",
        "activations_checkpoint_granularity",
    )
    granularity = settings.text("recompute_granularity", "activations_checkpoint_granularity")
    method = settings.text("recompute_method", "activations_checkpoint_method")
    is_old = settings.truth("checkpoint_activations") or settings.text("activations_checkpoint_method")
    if settings.truth("recompute_activations") and not granularity:
        granularity = "selective"
    if granularity == "full" or (is_old and granularity != "selective"):
        columns.put("recompute", _full(columns, method), *names)
    elif granularity == "selective":
        modules = settings.text("recompute_modules").strip("[]").replace("'", "").replace('"', "")
        is_plain = modules.replace(",", " ").split() in ([], ["core_attn"])
        columns.put("recompute", "selective" if is_plain else modules, *names)
    elif any(settings.is_known(name) for name in names):
        columns.put("recompute", "none", *names)
    elif settings.has_arguments:
        columns.assumed("recompute", "none", "no flag of recomputation is given")


def _full(columns: Columns, method: str) -> str:
    """Full recomputation; `block` is of the first layers of a stage alone, unless these are all."""
    layers, stages = columns.count("layers"), (columns.count("pp") or 1) * (columns.count("vpp") or 1)
    each = columns.settings.whole("recompute_num_layers", "activations_checkpoint_num_layers")
    is_part = method == "block" and each and layers and each < layers // stages
    return f"block of {each} layers" if is_part else "full"


def _fill_precision(columns: Columns) -> None:
    settings = columns.settings
    params, named = settings.text("params_dtype"), settings.text("precision").lower()
    is_bf16 = (
        settings.truth("bf16")
        or "bfloat16" in params
        or named in ("bfloat16", "bf16")
        or settings.truth("bf16.enabled")
    )
    is_fp16 = settings.truth("fp16") or params.endswith("float16") or named == "fp16" or settings.truth("fp16.enabled")
    dtype = "bf16" if is_bf16 else "fp16" if is_fp16 else "fp32"
    columns.put(
        "precision",
        dtype,
        *(("bf16", "fp16") if not is_fp16 or is_bf16 else ("fp16",)),
        "params_dtype",
        "precision",
        "bf16.enabled",
        "fp16.enabled",
    )
    if settings.text("program") in ("megatron", "swift"):
        columns.assumed("precision", "bf16", "ms-swift's default")
    if "precision" not in columns.run.columns and settings.has_arguments:
        columns.assumed("precision", "fp32", "neither --bf16 nor --fp16 is given")
    if settings.truth("accumulate_allreduce_grads_in_fp32"):
        columns.put("gradient_dtype", "fp32", "accumulate_allreduce_grads_in_fp32")
    elif settings.truth("grad_reduce_in_bf16"):
        columns.put("gradient_dtype", "bf16", "grad_reduce_in_bf16")
    elif dtype == "fp16" and settings.truth("accumulate_allreduce_grads_in_fp32") is False:
        columns.put(
            "gradient_dtype", "bf16", "accumulate_allreduce_grads_in_fp32", note="16 bits: gradients are kept in fp16"
        )
    for narrow in ("fp4", "fp8"):
        form = settings.fact(f"{narrow}_format", narrow)
        if form is not None and form.value.lower() not in ("false", "0"):
            columns.put("matmul_precision", narrow, f"{narrow}_format", narrow)
            if recipe := settings.text(f"{narrow}_recipe"):
                columns.put("fp8_recipe", recipe, f"{narrow}_recipe")
            break


def _fill_kernels(columns: Columns) -> None:
    settings = columns.settings
    backend = settings.text("attention_backend").rpartition(".")[2].lower()
    is_te = settings.text("transformer_impl") == "transformer_engine"
    flash = (
        settings.truth("use_flash_attn", "")
        or settings.truth("use_flash_attn_v2")
        or settings.truth("use_flash_attn_triton")
    )
    if flash:
        columns.put("flash_attention", True, "use_flash_attn", "use_flash_attn_v2", "use_flash_attn_triton")
    elif backend in ("unfused", "local"):
        columns.put("flash_attention", False, "attention_backend")
    elif backend in ("flash", "fused"):
        columns.put("flash_attention", True, "attention_backend")
    elif is_te or backend == "auto":
        columns.put(
            "flash_attention",
            True,
            "transformer_impl",
            "attention_backend",
            note="as Transformer Engine chooses by itself",
        )
    elif "flash" in settings.text("attention_config"):
        columns.put("flash_attention", True, "attention_config")
    elif settings.is_known("use_flash_attn", "transformer_impl", "attention_config"):
        columns.put("flash_attention", False, "use_flash_attn", "transformer_impl", "attention_config")
    columns.truth("async_tp", "tp_comm_overlap")
    drops = [fact for name in ("hidden_dropout", "attention_dropout") if (fact := settings.fact(name))]
    if drops:
        columns.put(
            "dropout", any((number(fact.value) or 0) > 0 for fact in drops), "hidden_dropout", "attention_dropout"
        )
    if (
        (optimizer := settings.text("optimizer", "optimizer.optimizer").lower())
        and "adam" not in optimizer
        and optimizer[:1] not in "{["
    ):
        columns.put("optimizer", optimizer, "optimizer")
    graphs = (
        settings.truth("enable_cuda_graph")
        or settings.truth("external_cuda_graph")
        or settings.text("cuda_graph_impl") in ("local", "transformer_engine")
    )
    if graphs:
        columns.put("cuda_graphs", True, "enable_cuda_graph", "external_cuda_graph", "cuda_graph_impl")


def _line(columns: Columns, name: str) -> LogLine | None:
    fact = columns.settings.fact(name)
    return fact.at if fact else None
