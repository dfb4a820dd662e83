"""The model of a row, a GPT or a Llama, its layout over devices, and the sequences of a step."""

from __future__ import annotations

import re

from conf.errors import ConfigError
from conf.nearest import VOCABULARY_MULTIPLE, next_multiple
from conf.plan.knobs import EXPERT_DISPATCHERS, plain_values
from conf.types.model_spec import AttentionWindowSpec, ExpertsSpec, LatentAttentionSpec, ModelSpec
from conf.types.recompute import MODES, Recompute
from conf.types.schema import MOST_SEQUENCES, BatchPlan, ExpertDispatcher, Family, ParallelPlan
from conf.units import count_of
from sweeps.table.cells import Row, choice_of, flag_of, index_of, integer_of, match_in, number_of, spellings, text_of

USUAL_VOCABULARY = 51_200  # GPT-2's 50,257 as Megatron-LM pads it for 8 tensor ranks
MOST_LAYERS = 10_000  # the layers of every stage are listed, so that a slip here would cost time and memory
EXPERT_COLUMNS = ("top_k", "moe_ffn", "shared_expert_ffn", "dense_layers", "capacity_factor")
LATENT_ATTENTION = r"^(?:mla )?(\d+) ?\+ ?(\d+) ?/ ?v (\d+)(?:, ?q_lora (\d+))?, ?kv_lora (\d+)$"
WINDOW = r"^(\d+)(?:, ?full every ([2-9]|\d\d+))?$"

ZERO_STAGES = spellings(
    {
        0: "0 none no ddp no_shard",
        1: "1 distributed distributed_optimizer",
        2: "2",
        3: "3 full_shard hybrid_shard fsdp fsdp1 fsdp2 hsdp",
    }
)
NUMBERED_STAGE = re.compile(r"(?:zero[-_ ]?|stage[-_ ]?)+([0-3])\b")
"""`ZeRO-1`, `zero1`, `stage 1`, `zero stage 1`."""
HYBRID = r"\bhsdp\b|\bhybrid_shard\b"
RECOMPUTATIONS: dict[str, Recompute] = {
    **spellings({name: f"{name} {mode.spellings}" for name, mode in MODES.items()}),
    "unknown": "none",
}
POINTWISE_MODULES = r"norm|mlp_act|moe_act|mla_up_proj"
WHOLE_MODULES = r"\b(?:mlp|moe|shared_experts)\b"
"""Modules of Megatron-Core's `--recompute-modules` that compute nothing wide, and those that do. With experts, `mlp` is
the feed-forward part of the few layers that have none."""
DISPATCHERS: dict[str, ExpertDispatcher] = {**{name: name for name in EXPERT_DISPATCHERS}, "all-to-all": "alltoall"}
USUAL_PER_NODE = 8
MANY_MICRO_BATCHES = 1024
"""Of a rate that leaves the reduction of gradients out: so many that its share vanishes."""


def model_of(row: Row, tensor_parallel_size: int) -> ModelSpec:
    hidden, heads, gated = integer_of(row, "hidden"), integer_of(row, "heads"), flag_of(row, "gated_mlp", default=False)
    latent, head_size = _attention_of(row)
    family: Family = "llama" if latent else _family_of(row, gated)  # such attention has rotary positions
    return ModelSpec(
        name="row",
        family=family,
        num_layers=integer_of(row, "layers", most=MOST_LAYERS),
        hidden_size=hidden,
        ffn_hidden_size=_ffn_hidden_of(row),
        num_attention_heads=heads,
        # Latent attention makes keys for every head, whatever a table calls a head of its short vectors.
        num_query_groups=heads if latent else integer_of(row, "kv_heads", default=heads),
        head_size=head_size,
        rotary_base=None,
        gated_mlp=gated,
        tied_embeddings=flag_of(row, "tied_embeddings", default=family == "gpt"),
        # Every rank's share of the rows suits its matrix units. Source: Megatron-LM, megatron/tokenizer/tokenizer.py,
        # _vocab_size_with_padding.
        vocab_size=next_multiple(
            integer_of(row, "vocab", default=USUAL_VOCABULARY), VOCABULARY_MULTIPLE * tensor_parallel_size
        ),
        seq_length=integer_of(row, "seq"),
        experts=_experts_of(row),
        latent_attention=latent,
        attention_window=_window_of(row),
    )


def _ffn_hidden_of(row: Row) -> int:
    return integer_of(row, "ffn_hidden", default=4 * integer_of(row, "hidden"))


def _family_of(row: Row, gated: bool) -> Family:
    """Llama's if the row has a gated feed-forward layer or fewer heads of keys than heads; else GPT's."""
    grouped = bool(text_of(row, "kv_heads")) and integer_of(row, "kv_heads") != integer_of(row, "heads")
    return "llama" if gated or grouped else "gpt"


def _experts_of(row: Row) -> ExpertsSpec | None:
    num_experts = index_of(row, "num_experts") or 1
    if num_experts == 1:  # some tables write 1 or 0 for a model without a choice among experts
        _refuse_experts(row)
        return None
    return ExpertsSpec(
        num_experts=num_experts,
        top_k=integer_of(row, "top_k", most=num_experts),
        ffn_hidden_size=integer_of(row, "moe_ffn", default=_ffn_hidden_of(row)),
        shared_ffn_hidden_size=index_of(row, "shared_expert_ffn") or 0,
        num_dense_layers=index_of(row, "dense_layers") or 0,
        capacity_factor=number_of(row, "capacity_factor"),
    )


def _refuse_experts(row: Row) -> None:
    """Refuse what says something about experts in a row that does not say how many there are."""
    for column, plain in (("ep", "1"), *((column, "0") for column in EXPERT_COLUMNS)):
        if text_of(row, column).removesuffix(".0") not in ("", plain):
            problem = "needs num_experts, and the row names none"
            raise ConfigError(column, text_of(row, column), problem, "Fill in num_experts, or leave this cell empty.")


def _attention_of(row: Row) -> tuple[LatentAttentionSpec | None, int | None]:
    """Latent attention, where the row has it, and the width of a head."""
    if text_of(row, "mla").lower() in ("", "no", "none"):
        return None, integer_of(row, "head_dim") if text_of(row, "head_dim") else None
    sizes = match_in(row, LATENT_ATTENTION, "mla")
    if sizes is None or not all(int(size) for size in sizes.groups()[1:] if size):
        remedy = "Write 128+64 / v 128, q_lora 1536, kv_lora 512, or no."
        raise ConfigError("mla", text_of(row, "mla"), "cannot be read as latent attention", remedy)
    plain, rotary, value, key_value_rank = (int(sizes.group(number)) for number in (1, 2, 3, 5))
    query_rank = int(sizes.group(4)) if sizes.group(4) else None
    latent = LatentAttentionSpec(
        query_rank=query_rank, key_value_rank=key_value_rank, rotary_head_size=rotary, value_head_size=value
    )
    return latent, plain + rotary


def _window_of(row: Row) -> AttentionWindowSpec | None:
    """The window within which layers attend, where the row has one."""
    stated = text_of(row, "attention_window")
    if stated.lower().removesuffix(".0") in ("", "0", "no", "none"):
        return None
    sizes = match_in(row, WINDOW, "attention_window")
    if sizes is None or not int(sizes.group(1)):
        remedy = "Write 128 where all layers have it, 128, full every 2 where every second does not, or no."
        raise ConfigError("attention_window", stated, "cannot be read as a window", remedy)
    return AttentionWindowSpec(size=int(sizes.group(1)), full_every=int(sizes.group(2)) if sizes.group(2) else None)


def parallel_of(row: Row) -> ParallelPlan:
    tensor, pipeline, context = integer_of(row, "tp"), integer_of(row, "pp"), integer_of(row, "cp", default=1)
    devices, chunks = integer_of(row, "num_gpus"), integer_of(row, "vpp", default=1)
    _check_replicas(row, tensor * pipeline * context, devices)
    stated = {
        "world_size": devices,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "virtual_pipeline_size": chunks,
        "schedule": "interleaved" if chunks > 1 else "1f1b",
        # As in Megatron-LM, which turns it off where there is nothing to share with, and wants it beside experts.
        "sequence_parallel": flag_of(row, "sequence_parallel", default=integer_of(row, "ep", default=1) > 1)
        and tensor > 1,
        "zero_stage": _zero_stage_of(row, pipeline),
        "zero_group_size": _zero_group_of(row, devices // (tensor * pipeline)),
        "layers_per_stage": _lighter_ends(integer_of(row, "layers", most=MOST_LAYERS), pipeline, chunks),
        "context_parallel_size": context,
        # A row was run as it says, so that no layout is refused because a search would not choose it.
        "tensor_parallel_across_nodes": True,
        **_expert_sizes_of(row, tensor, pipeline, devices),
        **_recompute_of(row),
    }
    return ParallelPlan(**{**plain_values("parallel"), **stated})


def _check_replicas(row: Row, model_parallel: int, devices: int) -> None:
    if text_of(row, "dp") and model_parallel * integer_of(row, "dp") != devices:
        context = " x cp" if integer_of(row, "cp", default=1) > 1 else ""
        sizes = " x ".join(str(integer_of(row, column)) for column in ("tp", "pp", *(["cp"] if context else [])))
        problem = f"times tp x pp{context} = {sizes} is not num_gpus = {devices}"
        raise ConfigError("dp", text_of(row, "dp"), problem, "Correct one of them, or leave dp empty.")


def _lighter_ends(layers: int, pipeline: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of each stage where chunks are equal only if embedding and head count as a layer; else None, for evenly.

    With as many chunks as those, the first one has the embedding alone and the last one the head. So the 126 layers of
    Llama 3.1 405B are spread (arXiv 2407.21783, section 3.3.2; account_for_embedding_in_pipeline_split of
    Megatron-Core).
    """
    parts = pipeline * chunks
    if chunks == 1 or layers % parts == 0 or (layers + 2) % parts:
        return None
    inner = (layers + 2) // pipeline
    return (inner - 1, *(inner,) * (pipeline - 2), inner - 1)


def _zero_stage_of(row: Row, pipeline: int) -> int:
    if "shard_grad_op" in text_of(row, "zero_stage").lower():
        return 2
    numbered = NUMBERED_STAGE.match(text_of(row, "zero_stage").lower())
    stage = int(numbered.group(1)) if numbered else choice_of(row, "zero_stage", ZERO_STAGES, default=0)
    # What stays gathered for all micro-batches of a step is shared out as ZeRO-2 does. FSDP2 keeps it beside a pipeline
    # (torchtitan, its `default`).
    usual = not match_in(row, "fsdp", "zero_stage")
    is_kept = pipeline > 1 and not flag_of(row, "reshard_after_forward", default=usual)
    return 2 if stage == 3 and is_kept else stage


def _zero_group_of(row: Row, replicas: int) -> int | None:
    """Replicas among which ZeRO shares out: as the row says, those of a node under HSDP; None where these are all."""
    usual = (
        integer_of(row, "gpus_per_node", default=USUAL_PER_NODE) if match_in(row, HYBRID, "zero_stage") else replicas
    )
    size = index_of(row, "zero_group_size") or usual
    return size if 1 <= size < replicas and replicas % size == 0 else None


def _expert_sizes_of(row: Row, tensor: int, pipeline: int, devices: int) -> dict[str, int | str | None]:
    """Ranks of experts. Every expert is cut as the rest of a layer is, unless there are too few devices for that."""
    experts = integer_of(row, "ep", default=1)
    usual = None if devices % (tensor * pipeline * experts) == 0 else 1
    stated = integer_of(row, "etp") if text_of(row, "etp") else usual
    return {
        "expert_parallel_size": experts,
        "expert_tensor_parallel_size": stated if experts > 1 else None,
        "expert_dispatcher": choice_of(row, "dispatcher", DISPATCHERS, default="alltoall"),
    }


def _recompute_of(row: Row) -> dict[str, object]:
    # Two words of a remark change what the first word means: `selective (every 2nd layer)`, `norm and activation`.
    every = match_in(row, r"every (\d+)(?:st|nd|rd|th)? layer", "recompute")
    if every:
        if not int(every.group(1)):
            remedy = "Write `every 2nd layer`, with a count from 1, or none."
            raise ConfigError("recompute", text_of(row, "recompute"), "counts layers by no number", remedy)
        return {"recompute": "full", "recompute_every": int(every.group(1))}
    _require_modelled(row)
    if match_in(row, POINTWISE_MODULES, "recompute"):
        return {"recompute": "pointwise"}
    return {"recompute": choice_of(row, "recompute", RECOMPUTATIONS, default="none")}


def _require_modelled(row: Row) -> None:
    """Refuse recomputation of a part that is neither every layer, nor the core of attention, nor pointwise."""
    modules = {found.group() for found in re.finditer(WHOLE_MODULES, text_of(row, "recompute").lower())}
    has_experts = (index_of(row, "num_experts") or 1) > 1
    if modules - ({"mlp"} if has_experts else set()) or match_in(row, r"\bblock\b", "recompute"):
        problem = "recomputes whole modules, or layers at one end of a stage, which is not modelled"
        remedy = f"Modelled are {', '.join(MODES)} and `every Nth layer`."
        raise ConfigError("recompute", text_of(row, "recompute"), problem, remedy)


def batch_of(row: Row, parallel: ParallelPlan) -> BatchPlan:
    """Sequences of a step. A row that names none, and no pipeline, runs one micro-batch of each replica a step."""
    stages, others = parallel.pipeline_parallel_size, parallel.tensor_parallel_size * parallel.context_parallel_size
    # Fewer devices than one takes are refused with all else.
    replicas = max(1, parallel.world_size // (stages * others))
    # Sequences of one replica in a step, which torchtitan's tables state in place of a micro-batch.
    is_told = bool(text_of(row, "local_batch")) and not text_of(row, "micro_batch")
    local = integer_of(row, "local_batch") if is_told else None
    # torchtitan cuts a local batch into as many micro-batches as there are stages, unless it is told otherwise. Source:
    # torchtitan of December 2024, config_manager.py, pipeline_parallel_microbatches.
    usual = None if local is None or local % stages else local // stages
    micro_batch = integer_of(row, "micro_batch", default=usual)
    if text_of(row, "global_batch") or (stages > 1 and local is None):
        return BatchPlan(global_batch_size=integer_of(row, "global_batch"), micro_batch_size=micro_batch)
    many = MANY_MICRO_BATCHES if flag_of(row, "grad_reduce_excluded", default=False) else 1
    of_replica = micro_batch * many if local is None else local
    if of_replica * replicas > MOST_SEQUENCES:
        problem = f"makes {count_of(of_replica * replicas, 'sequence')} of a step, on {count_of(replicas, 'replica')}"
        remedy = f"Correct it, or fill in global_batch with up to {MOST_SEQUENCES:,}."
        column = "micro_batch" if local is None else "local_batch"
        raise ConfigError(column, text_of(row, column), problem, remedy)
    return BatchPlan(global_batch_size=of_replica * replicas, micro_batch_size=micro_batch)
