"""Columns of a table of configurations: those that are read, and what a row may not say in any other.

Prices come from columns alone, never from free text. A row that says in a column that its price is another one, and
that nothing reads, is refused: priced without it, it would be priced as something else.
"""

from __future__ import annotations

import re

from conf.errors import ConfigError
from sweeps.table.cells import Row, text_of

REQUIRED_COLUMNS = ("layers", "hidden", "heads", "seq", "num_gpus", "tp", "pp", "micro_batch", "global_batch")
DEVICE_COLUMNS = ("gpu", "cluster")
OPTIONAL_COLUMNS = (
    *("ffn_hidden", "vocab", "kv_heads", "head_dim", "gated_mlp", "tied_embeddings"),
    *("num_experts", "top_k", "moe_ffn", "shared_expert_ffn", "dense_layers", "capacity_factor"),
    *("vpp", "dp", "cp", "ep", "etp", "dispatcher", "sequence_parallel", "precision", "fp8_recipe", "gradient_dtype"),
    *("recompute", "zero_stage", "flash_attention", "implementation", "compile"),
    *("gpus_per_node", "network_gbits_per_node", "power_limit_watts", "stage", "local_batch", "grad_reduce_excluded"),
    *("zero_group_size", "reshard_after_forward", "optimizer", "out_of_memory", "mla", "attention_window"),
    *("matmul_precision", "compile_loss", "async_tp", "grouped_gemm", "overlap_moe", "overlap_weight_gradient"),
    *("cuda_graphs", "graphs_layers", "dropout", "unfused_adam", "unfused_expert_biases", "cudnn_attention"),
    *("usual_implementation", "tflops_count", "causal_half", "allocated_memory", "measured_by"),
    "launch_blocking",
)
MEASURED_COLUMNS = ("iter_time_s", "tokens_per_s", "tflops_per_gpu", "mfu_pct", "hfu_pct", "memory_gib")

UNREAD_COLUMNS = (
    *("cpu_offload", "cross_attention", "encoder_layers", "frozen_layers", "local_attention"),
    *("lora", "lora_rank", "mamba_layers", "moe_every", "moe_frequency", "moe_layer_freq", "mtp", "mtp_layers"),
    *("num_mamba_layers", "offload", "offload_optimizer", "optimizer_offload", "activation_offload", "ulysses"),
    "vision_layers",
)
NAMED_OTHERWISE = {
    "activated_experts": "top_k",
    "activation_checkpointing": "recompute",
    "context_parallel": "cp",
    "context_parallel_size": "cp",
    "dtype": "precision",
    "expert_parallel": "ep",
    "expert_parallel_size": "ep",
    "experts": "num_experts",
    "experts_per_token": "top_k",
    "gradient_checkpointing": "recompute",
    "head_size": "head_dim",
    "intermediate_size": "ffn_hidden",
    "n_experts": "num_experts",
    "n_kv_heads": "kv_heads",
    "num_key_value_heads": "kv_heads",
    "num_kv_heads": "kv_heads",
    "num_query_groups": "kv_heads",
    "recomputation": "recompute",
    "seq_parallel": "sequence_parallel",
    "sliding_window": "attention_window",
    "virtual_pipeline": "vpp",
    "virtual_pipeline_size": "vpp",
    "vocab_size": "vocab",
    "vp": "vpp",
    "window": "attention_window",
    "window_size": "attention_window",
    "zero": "zero_stage",
    "zero_optimization": "zero_stage",
}
"""Columns of other people's tables, and what they are called here."""
BY_TURNS = ("moe_every", "moe_frequency", "moe_layer_freq")
"""Which layers have experts. On one stage it makes no difference; of several the first ones are taken to have none."""
PARTS_OF_MODELS = (
    (
        "mamba_layers",
        r"nemotron-?h\b|\bmamba|\bjamba|\bzamba|\bhymba|\brwkv|qwen3-?next|minimax(?!-?m2)|[- ]hybrid\b|falcon-?h1|"
        r"granite-?4",
        "layers without attention",
    ),
    ("lora", r"\bq?lora\b|\bpeft\b", "weights that are not trained"),
    ("local_attention", r"gemma[- ]?[23]", "attention within a window, and scores that are capped or normed"),
    ("encoder_layers", r"\b(?:bert|t5|vit|whisper|llava|vlm|vl)\b", "parts that do not decode text"),
    (
        "num_experts",
        r"mixtral|\dx\d+b\b|-a\d+b\b|\bmoe\b|\bgrok|\bdbrx\b|deepseek[-_ ]?(?:v[23]|r1)|kimi[-_ ]?k2|minimax|llama-?4|"
        r"glm-?4\.5|gpt[-_ ]?oss",
        "experts",
    ),
    ("moe_layer_freq", r"maverick", "experts in every other layer alone"),
    ("mla", r"deepseek[-_ ]?(?:v[23]|r1)|kimi[-_ ]?k2|moonlight", "latent attention"),
    ("attention_window", r"gpt[-_ ]?oss", "attention within a window"),
)
"""Columns without which a known model would be priced as another one, and its names."""
NOTHING = ("", "0", "no", "none", "false")
USUALLY_ONE = ("cp", "ep", "num_experts", "top_k", "vpp")
"""Columns in which 1 is what an empty cell means."""


def require_read(row: Row) -> None:
    """Raises ConfigError for a row that says something about its price which nothing reads, or too little for one."""
    is_whole = _says_something(row, "dense_layers") and text_of(row, "pp").removesuffix(".0") == "1"
    for column in UNREAD_COLUMNS:
        if _says_something(row, column) and not (is_whole and column in BY_TURNS):
            remedy = "Leave the cell empty only if it does not apply."
            if column in BY_TURNS:
                remedy = "Leave the row out; with pp = 1 fill in dense_layers."
            raise ConfigError(column, text_of(row, column), "changes the price, and is not modelled", remedy)
    for column, known in NAMED_OTHERWISE.items():
        if _says_something(row, column) and not text_of(row, known):
            raise ConfigError(column, text_of(row, column), f"is called {known} here", "Rename the column.")
    for column, names, part in PARTS_OF_MODELS:
        if not text_of(row, column) and re.search(names, text_of(row, "model").lower()):
            problem = f"has {part}, and {column} is empty"
            raise ConfigError("model", text_of(row, "model"), problem, f"Fill in {column}; `no` if it has none.")


def _says_something(row: Row, column: str) -> bool:
    plain = (*NOTHING, "1") if NAMED_OTHERWISE.get(column) in USUALLY_ONE else NOTHING
    return text_of(row, column).lower().removesuffix(".0") not in plain
