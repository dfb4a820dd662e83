"""A checkpoint as Hugging Face weights: safetensors files with their index, and a config.json."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from conf.errors import UsageError
from conf.types.model_spec import ModelSpec, RotaryScaling
from conf.types.schema import ROTARY_BASE, Dtype
from train_core.checkpoints.checkpoint_folder import Facts, Unreadable, damage, last_whole, read_facts
from train_core.checkpoints.huggingface_config import (
    DEEPSEEK_V3,
    GEMMA,
    GEMMA2,
    GPT_OSS,
    MISTRAL,
    MIXTRAL,
    OLMO2,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    model_type_of,
)
from train_core.checkpoints.huggingface_layout import from_rows, require_layout, router_biases_of, source_of
from train_core.checkpoints.reader import Reader, read, read_metadata
from train_core.model.initialize import DTYPES
from train_core.model.transformer import Transformer

CONFIG = "config.json"
CLASSES = {"llama": "Llama", QWEN2: "Qwen2", QWEN3: "Qwen3", MIXTRAL: "Mixtral", QWEN3_MOE: "Qwen3Moe"}
CLASSES |= {
    DEEPSEEK_V3: "DeepseekV3",
    MISTRAL: "Mistral",
    GEMMA: "Gemma",
    GEMMA2: "Gemma2",
    GPT_OSS: "GptOss",
    OLMO2: "Olmo2",
}
"""The names in `transformers` of the Llamas that are written."""
FILE_BYTES = 4 * 2**30
"""A file is written from memory in one piece, so that this is also about how much an export needs."""


def checkpoint_in(path: Path) -> Path:
    """The checkpoint itself, or the last whole one of a folder of them or of a trial.

    Raises:
        UsageError: there is none.
    """
    if damage(path) is None:
        return path
    for folder in (path, path / "checkpoints"):
        if (found := last_whole(folder)) is not None:
            return found
    raise UsageError(f"{path} holds no whole checkpoint", "Name a trial's folder, or one of its checkpoints.")


def export(checkpoint: Path, out: Path, dtype: Dtype) -> list[Path]:
    """Write the weights of a whole checkpoint into a new folder; returns the files.

    Raises:
        UsageError: the folder exists, or cannot be written; or the checkpoint turns out to be damaged.
        ConfigError: the model has no place in any layout.
    """
    facts = read_facts(checkpoint)
    spec = facts.model
    require_layout(spec)
    if out.exists():
        raise UsageError(f"{out} exists already", "Name a folder that does not exist.")
    # Renamed at the end, so that a kill never leaves half an export that looks like a whole one.
    draft = out.with_name(f".{out.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)  # an earlier export may have been killed
        draft.mkdir(parents=True)
        (draft / CONFIG).write_text(json.dumps(hugging_face_config(spec, dtype), indent=2) + "\n")
        _write_tokenizer(draft, checkpoint, spec)
        _write_files(draft, _tensors(checkpoint, facts, DTYPES[dtype]))
        draft.rename(out)
    except Unreadable as problem:
        shutil.rmtree(draft, ignore_errors=True)
        raise UsageError(f"{checkpoint} {problem}", "Name another checkpoint.") from None
    except (OSError, SafetensorError) as error:  # the library has an error of its own for a full disk
        shutil.rmtree(draft, ignore_errors=True)
        raise UsageError(
            f"{out} could not be written: {error}", "Choose a folder with room for the weights."
        ) from error
    return sorted(out.iterdir())


def _tensors(checkpoint: Path, facts: Facts, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors by name, one at a time, so that a model larger than memory can be written."""
    spec, reader = facts.model, Reader(checkpoint, read_metadata(checkpoint, facts))
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Transformer(spec).named_parameters()}
    for name, shape in shapes.items():
        parameter = torch.empty(shape)
        read({f"weights.{name}": parameter}, reader)
        source = source_of(name, spec)
        tensors = (tensor.to(dtype) for tensor in from_rows(parameter, source, spec))
        yield from zip(source.names, tensors, strict=True)
    for name in router_biases_of(spec):
        assert spec.experts is not None
        bias = torch.zeros(spec.experts.num_experts)
        if spec.experts.balance_bias:  # else no checkpoint has any
            read({name: bias}, reader)
        (tensor,) = source_of(name, spec).names
        yield tensor, bias  # in fp32, as `transformers` keeps it


def _write_tokenizer(folder: Path, checkpoint: Path, spec: ModelSpec) -> None:
    """The tokenizer that lies beside the checkpoints, if one does, with what `AutoTokenizer` asks for."""
    near = (each / "tokenizer.json" for each in (checkpoint, checkpoint.parent, checkpoint.parent.parent))
    found = next((path for path in near if path.is_file()), None)
    if found is None:
        return
    (folder / "tokenizer.json").write_bytes(found.read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": spec.seq_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _write_files(folder: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write files of at most about 4 GiB, and an index that says which holds what."""
    held: dict[str, Tensor] = {}
    index: dict[str, str] = {}
    total = count = 0

    def write() -> None:
        nonlocal count
        count += 1
        file = f"model-{count:05d}.safetensors"
        save_file(held, folder / file, metadata={"format": "pt"})
        # The library makes files that only the user reads, whatever the umask says.
        (folder / file).chmod(stat.S_IMODE((folder / CONFIG).stat().st_mode))
        index.update(dict.fromkeys(held, file))
        held.clear()

    for name, tensor in tensors:
        if held and sum(waiting.nbytes for waiting in held.values()) + tensor.nbytes > FILE_BYTES:
            write()
        held[name] = tensor
        total += tensor.nbytes
    write()
    written = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(written, indent=2) + "\n")


def hugging_face_config(spec: ModelSpec, dtype: Dtype) -> dict[str, Any]:
    """The `config.json` from which `transformers` builds the model around the weights."""
    shared = {
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": str(DTYPES[dtype]).removeprefix("torch."),
        # Texts are one stream here: no id begins or ends one, and the defaults of `transformers` may lie outside.
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if spec.family == "gpt":
        return shared | {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_positions": spec.seq_length,
            "n_embd": spec.hidden_size,
            "n_layer": spec.num_layers,
            "n_head": spec.num_attention_heads,
            "n_inner": spec.ffn_hidden_size,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": spec.norm_epsilon,
        }
    if spec.rotary_scaling is not None:
        shared["rope_scaling"] = _stretching(spec.rotary_scaling)
    kind, width = model_type_of(spec), spec.ffn_hidden_size
    if spec.narrow_window is not None:
        shared["sliding_window"] = spec.narrow_window
    if (experts := spec.experts) is not None:
        shared["num_experts_per_tok"] = experts.top_k
        if kind in (MIXTRAL, GPT_OSS):
            shared["num_local_experts"], width = experts.num_experts, experts.ffn_hidden_size
        elif spec.latent_attention is None:
            shared |= {"num_experts": experts.num_experts, "moe_intermediate_size": experts.ffn_hidden_size}
            shared["norm_topk_prob"] = True
    # What DeepSeek's files call so is the part of a head that positions turn.
    latent, head_size = spec.latent_attention, spec.query_size // spec.num_attention_heads
    rotary_size = head_size if latent is None else latent.rotary_head_size
    return (
        shared
        | _latent_keys(spec)
        | _keys_of_parts(spec, head_size)
        | {
            "architectures": [f"{CLASSES[kind]}ForCausalLM"],
            "model_type": kind,
            "max_position_embeddings": spec.seq_length,
            "hidden_size": spec.hidden_size,
            "intermediate_size": width,
            "num_hidden_layers": spec.num_layers,
            "num_attention_heads": spec.num_attention_heads,
            "num_key_value_heads": spec.num_query_groups,
            "head_dim": rotary_size,
            "rms_norm_eps": spec.norm_epsilon,
            "rope_theta": spec.rotary_base or ROTARY_BASE,
        }
    )


def _stretching(scaling: RotaryScaling) -> dict[str, Any]:
    if scaling.kind == "llama3":
        return {"rope_type": "llama3", **scaling.model_dump()}
    return {
        "rope_type": "yarn",
        "factor": scaling.factor,
        "beta_slow": scaling.low_freq_factor,
        "beta_fast": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
        "truncate": scaling.truncate,
        "attention_factor": scaling.attention_factor,
        "mscale_all_dim": scaling.mscale_all_dim,
    }


def _keys_of_parts(spec: ModelSpec, head_size: int) -> dict[str, Any]:
    """The activation, and the further keys of a model with windows or capped scores in some layers."""
    kind = model_type_of(spec)
    if kind == GPT_OSS:  # which stretches positions unless it is told not to
        rope = {"rope_type": "default"} if (scaling := spec.rotary_scaling) is None else _stretching(scaling)
        rope |= {"rope_theta": spec.rotary_base or ROTARY_BASE}
        return {"hidden_act": "silu", "attention_bias": True, "rope_parameters": rope, **_layer_types(spec)}
    if kind not in (GEMMA, GEMMA2):
        return {"hidden_act": "silu"}
    gelu = "gelu_pytorch_tanh"
    if kind == GEMMA:
        return {"hidden_act": gelu, "hidden_activation": gelu}
    scalar = spec.query_pre_attn_scalar or head_size
    return {
        "hidden_activation": gelu,
        "attn_logit_softcapping": spec.scores_cap,
        "final_logit_softcapping": spec.logits_cap,
        "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
        **_layer_types(spec),
    }


def _layer_types(spec: ModelSpec) -> dict[str, Any]:
    kinds = [
        "full_attention" if spec.window_of(layer) is None else "sliding_attention" for layer in range(spec.num_layers)
    ]
    return {"layer_types": kinds, "sliding_window": spec.narrow_window or spec.seq_length}


def _latent_keys(spec: ModelSpec) -> dict[str, Any]:
    """The keys of a DeepSeek-V3 alone; nothing of another model."""
    latent, experts = spec.latent_attention, spec.experts
    if latent is None or experts is None:
        return {}
    return {
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.key_value_rank,
        "qk_rope_head_dim": latent.rotary_head_size,
        "qk_nope_head_dim": spec.query_size // spec.num_attention_heads - latent.rotary_head_size,
        "v_head_dim": latent.value_head_size,
        "rope_interleave": True,
        "n_routed_experts": experts.num_experts,
        "moe_intermediate_size": experts.ffn_hidden_size,
        "n_shared_experts": experts.shared_ffn_hidden_size // experts.ffn_hidden_size,
        "first_k_dense_replace": experts.num_dense_layers,
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": experts.routed_scale,
        "n_group": experts.num_groups,
        "topk_group": experts.top_groups,
        "num_nextn_predict_layers": 0,
    }
