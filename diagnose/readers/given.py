"""What the command line says: `cluster=dgx-h100 parallel.tensor_parallel_size=8`, or a column by its name, `tp=8`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from conf.compose.complaints import require_option
from conf.compose.model_from import KEY as MODEL_FROM
from conf.compose.model_from import model_in
from conf.errors import ConfigError
from conf.folders import at_home, options, path_of
from conf.nearest import nearest
from conf.overrides import Override, Overrides
from conf.plan.knobs import KNOBS
from conf.yaml_text import file_text, yaml_content
from diagnose.readers.said import text_of
from diagnose.readers.unknown import USUAL
from diagnose.runs import Fact, LogLine, SaidBy
from sweeps.table.cells import integer_of
from sweeps.table.columns import DEVICE_COLUMNS, MEASURED_COLUMNS, MODEL_COLUMNS, OPTIONAL_COLUMNS, REQUIRED_COLUMNS

COMMAND_LINE = "the command line"
KNOWN = (*REQUIRED_COLUMNS, *DEVICE_COLUMNS, *OPTIONAL_COLUMNS, *MEASURED_COLUMNS)
BY_KEY = MODEL_COLUMNS | {knob.key: knob.column for knob in KNOBS if knob.column} | {"parallel.world_size": "num_gpus"}
OF_MODELS = {
    key.removeprefix("model."): column for key, column in MODEL_COLUMNS.items() if key.startswith("model.")
} | {
    "gated_mlp": "gated_mlp",
    "tied_embeddings": "tied_embeddings",
}


def given_facts(texts: Iterable[str]) -> dict[str, Fact]:
    """The facts that overrides state, by column.

    Raises:
        ConfigError: one is no `key=value`, its key has no column, or its value is no count or no cluster.
    """
    facts: dict[str, Fact] = {}
    for override in map(Override.parse, texts):
        text = override.text
        if override.key == "trainer":
            continue
        if override.value is None:
            raise ConfigError("override", text, "is not key=value", "Write it as tp=8 or cluster=dgx-h100.")
        where = LogLine(COMMAND_LINE, None, text)
        for column, value in _columns_of(override).items():
            facts[column] = Fact(value, SaidBy.OVERRIDE, where)
    return facts


def chosen_trainer(texts: Iterable[str]) -> str:
    """The file of group trainer whose patterns find steps in a log that is not known here: `trainer=NAME`."""
    return Overrides.parse(texts).stated_value("trainer") or USUAL


def _columns_of(override: Override) -> dict[str, str]:
    value = override.value or ""
    if override.key in (MODEL_FROM, "model"):
        is_file = override.key == MODEL_FROM
        shape = model_in(at_home(value, MODEL_FROM)) if is_file else _chosen_model(value)
        return columns_of_shape({name: size for name, size in shape.items() if name != "seq_length"})
    key = override.key if override.key in KNOWN else BY_KEY.get(override.key)
    if key is None:
        raise ConfigError(override.key, value, "has no column", nearest(override.key, [*BY_KEY, *KNOWN]))
    if key in REQUIRED_COLUMNS:
        integer_of({override.key: value}, override.key)
    elif key == "cluster":
        require_option("cluster", value, "cluster")
    return {key: value}


def _chosen_model(name: str) -> Mapping[str, object]:
    if (path := path_of("model", name)) is None:
        raise ConfigError("model", name, "is not known", nearest(name, options("model")))
    return _content(path)


def _content(path: Path) -> dict[str, object]:
    """A model's file, over the one that it builds on."""
    content = yaml_content(file_text(path), path, "model")
    assert isinstance(content, dict)
    base: dict[str, object] = {}
    for each in content.pop("defaults", []) or []:
        if isinstance(each, str) and each != "_self_" and (parent := path_of("model", each)) is not None:
            base |= _content(parent)
    return base | content


def columns_of_shape(shape: Mapping[str, object]) -> dict[str, str]:
    """The columns of a model, from the keys of group `model`."""
    found = {
        column: _cell(shape[key]) for key, column in OF_MODELS.items() if shape.get(key) is not None and "." not in key
    }
    experts = shape.get("experts")
    if isinstance(experts, Mapping):
        found |= {
            column: _cell(experts[key.removeprefix("experts.")])
            for key, column in OF_MODELS.items()
            if key.startswith("experts.") and experts.get(key.removeprefix("experts.")) is not None
        }
    if isinstance(latent := shape.get("latent_attention"), Mapping):
        rotary, value = int(str(latent["rotary_head_size"])), latent["value_head_size"]
        query = f", q_lora {latent['query_rank']}" if latent.get("query_rank") else ""
        plain = int(str(shape.get("head_size") or 0)) - rotary
        found["mla"] = f"{plain}+{rotary} / v {value}{query}, kv_lora {latent['key_value_rank']}"
    if isinstance(window := shape.get("attention_window"), Mapping):
        every = f", full every {window['full_every']}" if window.get("full_every") else ""
        found["attention_window"] = f"{window['size']}{every}"
    if shape.get("linear_attention"):
        found["mamba_layers"] = "linear attention"
    return found


def _cell(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else text_of(value)
