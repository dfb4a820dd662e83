"""Columns and remarks that change the price of a row and that nothing here reads: such a row gets no prediction.

Priced without them, it would be priced as something else.
"""

from __future__ import annotations

from conf.errors import ConfigError
from sweeps.table.cells import Row, text_of
from sweeps.table.remarks import said

UNREAD_COLUMNS = (
    "attention_window",
    "cross_attention",
    "encoder_layers",
    "frozen_layers",
    "lora_rank",
    "mamba_layers",
    "moe_layer_freq",
    "mtp_layers",
    "num_mamba_layers",
    "optimizer_offload",
    "activation_offload",
    "sliding_window",
    "vision_layers",
    "window",
)
UNREAD_MODELS = (
    (r"nemotron-?h\b|\bmamba|\bjamba|\bzamba|\bhymba|\brwkv|qwen3-?next|minimax", "layers without attention"),
    (r"\bq?lora\b|\bpeft\b", "weights that are not trained"),
)
"""Names of models whose rows say nothing else of what makes them different."""
WAITING_HOST = r"(?:cuda[_ ])?launch[_ ]blocking"
"""A switch for debugging: the host waits for every kernel before it launches the next one."""
NOTHING = ("", "0", "no", "none", "false")


def require_read(row: Row) -> None:
    """Refuse a row that says something about its price which nothing reads.

    Raises:
        ConfigError: it does, with the column as its key.
    """
    for column in UNREAD_COLUMNS:
        if text_of(row, column).lower().removesuffix(".0") not in NOTHING:
            raise ConfigError(
                column,
                text_of(row, column),
                "changes the price, and is not modelled",
                "Leave the cell empty only if it does not apply.",
            )
    for pattern, what in UNREAD_MODELS:
        if said(row, pattern, ("model", "series")):
            raise ConfigError("model", text_of(row, "model"), f"has {what}, which is not modelled", "Leave it out.")
    if waiting := said(row, WAITING_HOST):
        problem = "was run with launch blocking, in which the host waits for every kernel: that is not modelled"
        raise ConfigError("notes", waiting.group(), problem, "Measure without it.")
