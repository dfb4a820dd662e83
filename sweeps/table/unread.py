"""Columns and remarks that change the price of a row and that nothing here reads: such a row gets no prediction.

Priced without them, it would be priced as something else.
"""

from __future__ import annotations

from conf.errors import ConfigError
from sweeps.table.cells import Row, match_in, text_of

UNREAD_COLUMNS = (
    "cpu_offload",
    "cross_attention",
    "encoder_layers",
    "frozen_layers",
    "local_attention",
    "lora",
    "lora_rank",
    "mamba_layers",
    "moe_every",
    "moe_frequency",
    "moe_layer_freq",
    "mtp",
    "mtp_layers",
    "num_mamba_layers",
    "offload",
    "offload_optimizer",
    "optimizer_offload",
    "activation_offload",
    "ulysses",
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
UNREAD_MODELS = (
    (
        r"nemotron-?h\b|\bmamba|\bjamba|\bzamba|\bhymba|\brwkv|qwen3-?next|minimax(?!-?m2)|[- ]hybrid\b|falcon-?h1|"
        r"granite-?4",
        "layers without attention",
    ),
    (r"\bq?lora\b|\bpeft\b", "weights that are not trained"),
    (r"maverick", "experts in every other layer alone"),
    (r"gpt[-_ ]?oss", "sinks in its attention, and biases and a capped activation in its experts"),
    (r"gemma[- ]?[23]", "attention within a window in a part of its layers, and scores that are capped or normed"),
    (r"\b(?:bert|t5|vit|whisper|llava|vlm|vl)\b", "parts that are no decoder of text"),
)
"""Names of models whose rows say nothing else of what makes them different."""
WITH_EXPERTS = (
    r"mixtral|\dx\d+b\b|-a\d+b\b|\bmoe\b|\bgrok|\bdbrx\b|deepseek[-_ ]?(?:v[23]|r1)|kimi[-_ ]?k2|minimax|llama-?4|"
    r"glm-?4\.5"
)
UNKNOWN_TRAINERS = r"\b(?:maxtext|levanter|colossal-?ai|axlearn|jax|nanotron|picotron|litgpt|olmo-core)\b"
EXTRA_PREDICTIONS = r"(?<!no )(?<!without )\bmtp\b(?!:? ?(?:off|disabled|none|0))"
"""Heads that predict tokens further ahead (multi-token prediction)."""
WAITING_HOST = r"(?:cuda[_ ])?launch[_ ]blocking"
"""A switch for debugging: the host waits for every kernel before it launches the next one."""
NOTHING = ("", "0", "no", "none", "false")
USUALLY_ONE = ("cp", "ep", "num_experts", "top_k", "vpp")
"""Columns in which 1 is what an empty cell means."""


def require_read(row: Row) -> None:
    """Refuse a row that says something about its price which nothing reads.

    Raises:
        ConfigError: it does, with the column as its key.
    """
    for column in UNREAD_COLUMNS:
        if _says_something(row, column):
            remedy = "Leave the cell empty only if it does not apply."
            raise ConfigError(column, text_of(row, column), "changes the price, and is not modelled", remedy)
    for column, known in NAMED_OTHERWISE.items():
        if _says_something(row, column) and not text_of(row, known):
            raise ConfigError(column, text_of(row, column), f"is called {known} here", "Rename the column.")
    _require_known_model(row)
    if waiting := match_in(row, WAITING_HOST):
        problem = "was run with launch blocking, in which the host waits for every kernel: that is not modelled"
        raise ConfigError("notes", waiting.group(), problem, "Measure without it.")
    if (other := match_in(row, UNKNOWN_TRAINERS, ("source", "series"))) and not text_of(row, "implementation"):
        remedy = "Name in implementation the one that it is to be priced for."
        raise ConfigError("source", other.group(), "is a trainer that is not modelled", remedy)


def _require_known_model(row: Row) -> None:
    for pattern, what in UNREAD_MODELS:
        if match_in(row, pattern, ("model", "series")):
            raise ConfigError("model", text_of(row, "model"), f"has {what}, which is not modelled", "Leave it out.")
    if match_in(row, WITH_EXPERTS, ("model",)) and not text_of(row, "num_experts"):
        problem = "has experts, and the row does not say how many"
        raise ConfigError("model", text_of(row, "model"), problem, "Fill in num_experts; 1 where it has none.")
    if extra := match_in(row, EXTRA_PREDICTIONS, ("notes",)):
        raise ConfigError("notes", extra.group(), "adds layers that are not modelled", "Leave it out.")


def _says_something(row: Row, column: str) -> bool:
    plain = (*NOTHING, "1") if NAMED_OTHERWISE.get(column) in USUALLY_ONE else NOTHING
    return text_of(row, column).lower().removesuffix(".0") not in plain
