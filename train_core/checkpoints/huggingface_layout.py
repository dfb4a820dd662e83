"""Weights in Hugging Face's files (safetensors): GPT-2's layout for the GPT family, Llama's for the Llama family, where
biases of queries, keys and values make it that of Qwen2, their norms that of Qwen3, and experts that of Mixtral, of
Qwen3-MoE with norms, or of DeepSeek-V3 with latent attention. What `model.parts` lists may make it that of OLMo 2, of
Gemma or Gemma 2, whose norms multiply by 1 + weight there and by the weight here, or of gpt-oss, where all experts'
matrices are one tensor (E, in, out), whose columns take turns for gates and inputs.

A parameter of the model corresponds to one tensor there or to several, whose rows stand in another order, as here for
two query groups of two heads:

    there    q0 q1 q2 q3  k0 k1  v0 v1      all queries, all keys, all values
    here     q0 q1 k0 v0  q2 q3 k1 v1       group after group, so that a plain cut serves tensor parallelism

Of the rows that DeepSeek's positions turn, neighbours turn together there, and here row i with row i + r/2 of r.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from conf.folders import package_content
from conf.types.model_spec import ModelSpec
from train_core.checkpoints.huggingface_config import model_type_of
from train_core.model.transformer import gate_block_size


class Source(NamedTuple):
    """The tensors that make up one parameter, in the order in which their rows follow each other there.

    Attributes:
        rows: how this model orders them; `end_in_pairs` has such pairs at the end of all, `heads_end_in_pairs` of each
            head; `experts` and `gated_experts` are all experts' in one tensor.
        transposed: their matrices are (in, out), as in GPT-2's Conv1D.
        shift: what is added to the values there.
    """

    names: tuple[str, ...]
    rows: Literal["same", "groups", "gate", "end_in_pairs", "heads_end_in_pairs", "experts", "gated_experts"] = "same"
    transposed: bool = False
    shift: float = 0.0


ROUTER = "feed_forward.router"


def source_of(name: str, spec: ModelSpec) -> Source:
    """The source of the parameter with a global name; the names of its tensors are complete."""
    module, _, leaf = name.rpartition(".")
    parts = module.split(".")
    index, module = (parts[1], ".".join(parts[2:])) if parts[0] == "layers" else ("", module)
    source = _layout(spec)[module]
    if spec.experts is not None and "{expert}" in source.names[0]:
        experts = range(spec.experts.num_experts)
        names = (tensor.replace("{expert}", str(expert)) for expert in experts for tensor in source.names)
        source = source._replace(names=tuple(names))
    if module == ROUTER and leaf == "bias":  # which is no parameter, here or there
        leaf = "e_score_correction_bias"
    suffix = f".{leaf.removeprefix('score_')}"
    if source.rows in ("experts", "gated_experts") or module == "attention.sinks":
        suffix = "" if leaf == "weight" else f"_{leaf}"
    return source._replace(names=tuple(f"{tensor.format(index)}{suffix}" for tensor in source.names))


@cache
def _layouts() -> dict[str, dict[str, Source]]:
    """The source of each module, by its name in a layer or in the model, of each type of `huggingface_layout.yaml`."""
    layouts = dict[str, dict[str, Source]]()
    for kind, modules in package_content("huggingface_layout.yaml", "train_core.checkpoints").items():
        layouts[kind] = dict(layouts.get(modules.pop("like", ""), {}))
        for module, entry in modules.items():
            source = entry if isinstance(entry, dict) else {"names": entry}
            layouts[kind][module] = Source(**source | {"names": tuple(source["names"].split())})
    return layouts


def _layout(spec: ModelSpec) -> dict[str, Source]:
    has_long_queries = spec.latent_attention is not None and spec.latent_attention.query_rank is None
    return _layouts()[model_type_of(spec) + ("_with_long_queries" if has_long_queries else "")]


def router_biases_of(spec: ModelSpec) -> list[str]:
    """The names of the biases of routers for which the model's layout has a place."""
    if spec.experts is None or model_type_of(spec) != "deepseek_v3":
        return []
    return [f"layers.{index}.{ROUTER}.bias" for index in range(spec.num_dense_layers, spec.num_layers)]


def to_rows(tensors: list[Tensor], source: Source, spec: ModelSpec) -> Tensor:
    """The parameter, from its tensors there; of experts in one tensor, from some of them."""
    if source.rows in ("experts", "gated_experts"):
        (whole,) = tensors
        rows = whole.transpose(1, -1) if whole.dim() > 2 else whole  # (E, out, in), and (E, out) of biases
        rows = rows.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2) if source.rows == "gated_experts" else rows
        return rows.flatten(0, 1).contiguous()
    whole = torch.cat([tensor.t() if source.transposed and tensor.dim() == 2 else tensor for tensor in tensors])
    order = _order(source, spec, whole.size(0))
    rows = whole.contiguous() if order is None else whole[order]
    return rows + source.shift if source.shift else rows


def from_rows(parameter: Tensor, source: Source, spec: ModelSpec) -> list[Tensor]:
    """The tensors there, from the parameter: the reverse of `to_rows`."""
    if source.rows in ("experts", "gated_experts"):
        assert spec.experts is not None
        rows = parameter.unflatten(0, (spec.experts.num_experts, -1))
        rows = rows.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2) if source.rows == "gated_experts" else rows
        return [(rows.transpose(1, -1) if rows.dim() > 2 else rows).contiguous()]
    order = _order(source, spec, parameter.size(0))
    whole = parameter if order is None else parameter[order.argsort()]
    whole = whole - source.shift if source.shift else whole
    tensors = whole.split(_lengths(source, spec, parameter.size(0)))
    return [(tensor.t() if source.transposed and tensor.dim() == 2 else tensor).contiguous() for tensor in tensors]


def _order(source: Source, spec: ModelSpec, num_rows: int) -> Tensor | None:
    """The place there of each row here; None of rows in the same order."""
    places = torch.arange(num_rows)
    if source.rows == "same":
        return None
    if source.rows.endswith("in_pairs"):  # neighbours turn together there
        assert spec.latent_attention is not None
        heads = places.view(spec.num_attention_heads if source.rows == "heads_end_in_pairs" else 1, -1)
        size = spec.latent_attention.rotary_head_size
        plain, ends = heads.split([heads.size(1) - size, size], 1)
        return torch.cat((plain, ends[:, ::2], ends[:, 1::2]), 1).flatten()
    if source.rows == "groups":  # of query heads, one key head and one value head
        num_blocks, lengths = spec.num_query_groups, [spec.query_size, spec.key_value_size, spec.key_value_size]
    else:  # the gate and the input, of the layer's feed-forward network or of the shared expert
        width = num_rows // 2
        num_blocks, lengths = width // gate_block_size(spec, width), [width, width]
    # Parts that follow one another there take turns block by block here.
    return torch.cat([part.view(num_blocks, -1) for part in places.split(lengths)], 1).flatten()


def _lengths(source: Source, spec: ModelSpec, num_rows: int) -> list[int]:
    """The rows of each tensor there."""
    if source.rows == "groups" and len(source.names) > 1:
        return [spec.query_size, spec.key_value_size, spec.key_value_size]
    if source.rows == "end_in_pairs" and len(source.names) > 1:  # of a short query, and of a short key and value
        assert spec.latent_attention is not None
        rank = spec.latent_attention.query_rank or 0
        return [rank, num_rows - rank]
    # Experts are as large as each other, and so are the two matrices of an expert's first product.
    return [num_rows // len(source.names)] * len(source.names)
