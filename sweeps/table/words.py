"""Complaints about a setup, in the words of the table that describes it: columns instead of dotted keys."""

from __future__ import annotations

import re

from conf.errors import ConfigError
from conf.knobs import KNOBS
from sweeps.table.cells import Row, text_of

MODEL_COLUMNS = {
    "model.num_layers": "layers",
    "model.hidden_size": "hidden",
    "model.ffn_hidden_size": "ffn_hidden",
    "model.num_attention_heads": "heads",
    "model.num_query_groups": "kv_heads",
    "model.head_size": "head_dim",
    "model.vocab_size": "vocab",
    "model.seq_length": "seq",
    "model.experts.num_experts": "num_experts",
    "model.experts.top_k": "top_k",
    "model.experts.ffn_hidden_size": "moe_ffn",
    "model.experts.shared_ffn_hidden_size": "shared_expert_ffn",
    "model.experts.num_dense_layers": "dense_layers",
    "model.experts.capacity_factor": "capacity_factor",
    "precision.dtype": "precision",
    "precision.matmul_recipe": "precision",
    "precision.gradient_dtype": "gradient_dtype",
}
WITHOUT = {"precision.matmul_recipe=null": "bf16"}
"""What a table writes where a configuration has none."""
KNOBS_IN_TEXT = {name: knob for knob in KNOBS for name in (knob.key, knob.name)}
"""Messages name a knob by its dotted key, or in the middle of a sentence by its name alone."""
NAMED = re.compile(
    r"(?P<joined>, and )?(?<![\w.])(?P<name>" + "|".join(map(re.escape, [*MODEL_COLUMNS, *KNOBS_IN_TEXT])) + r")\b"
    r"(?:=(?P<value>\w+))?"
)


def about_columns(error: ConfigError, row: Row) -> ConfigError:
    """The same complaint in the words of the table: columns and cells instead of dotted keys and their values."""
    # Only messages are rewritten: the checks stay those of the configuration and need not know of tables.
    key, problem, remedy = (NAMED.sub(_in_columns, text) for text in (error.key, error.problem, error.remedy))
    return ConfigError(key, text_of(row, key) or error.value, problem, remedy)


def _in_columns(match: re.Match[str]) -> str:
    """The replacement for one name and its value. In a list, what a table has no column for is left out."""
    joined, name, value = match["joined"] or "", match["name"], match["value"]
    if name in MODEL_COLUMNS:
        column, cell = MODEL_COLUMNS[name], WITHOUT.get(f"{name}={value}", value)
    else:
        knob = KNOBS_IN_TEXT[name]
        column, cell = knob.column, knob.value_columns.get(value or "", value)
    if not column:
        return "" if joined else match[0]
    return f"{joined}{column}={cell}" if cell else f"{joined}{column}"
