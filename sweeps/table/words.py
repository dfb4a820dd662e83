"""Complaints about an experiment, in the words of the table that describes it: columns instead of dotted keys."""

from __future__ import annotations

from conf.errors import ConfigError
from sweeps.table.cells import Row, text_of

COLUMN_OF_KEY = {
    "model.num_layers": "layers",
    "model.hidden_size": "hidden",
    "model.ffn_hidden_size": "ffn_hidden",
    "model.num_attention_heads": "heads",
    "model.num_query_groups": "kv_heads",
    "model.head_size": "head_dim",
    "model.vocab_size": "vocab",
    "model.seq_length": "seq",
    "parallel.world_size": "num_gpus",
    "parallel.tensor_parallel_size": "tp",
    "parallel.pipeline_parallel_size": "pp",
    "parallel.virtual_pipeline_size": "vpp",
    "parallel.sequence_parallel": "sequence_parallel",
    "parallel.zero_stage": "zero_stage",
    "parallel.recompute": "recompute",
    "batch.global_batch_size": "global_batch",
    "batch.micro_batch_size": "micro_batch",
    "precision.dtype": "precision",
    "parallel.schedule": "vpp",
    "schedule=1f1b": "vpp=1",
    ", and parallel.layers_per_stage=null": "",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "micro_batch_size": "micro_batch",
}


def about_columns(error: ConfigError, row: Row) -> ConfigError:
    """The same complaint in the words of the table: columns and cells instead of dotted keys and their values."""
    key, problem, remedy = (_in_columns(text) for text in (error.key, error.problem, error.remedy))
    return ConfigError(key, text_of(row, key) or error.value, problem, remedy)


def _in_columns(text: str) -> str:
    for dotted, column in COLUMN_OF_KEY.items():
        text = text.replace(dotted, column)
    return text
