"""The model that a row of a table describes: a GPT or a Llama, with experts or latent attention where it says so."""

from __future__ import annotations

from conf.errors import ConfigError
from conf.nearest import VOCABULARY_MULTIPLE, next_multiple
from conf.types.model_spec import AttentionWindowSpec, ExpertsSpec, LatentAttentionSpec, ModelSpec
from conf.types.schema import Family
from sweeps.table.cells import Row, flag_of, index_of, integer_of, match_in, number_of, text_of

USUAL_VOCABULARY = 51_200  # GPT-2's 50,257 as Megatron-LM pads it for 8 tensor ranks
MOST_LAYERS = 10_000  # the layers of every stage are listed, so that a slip here would cost time and memory
EXPERT_COLUMNS = ("top_k", "moe_ffn", "shared_expert_ffn", "dense_layers", "capacity_factor")
LATENT_ATTENTION = r"^(?:mla )?(\d+) ?\+ ?(\d+) ?/ ?v (\d+)(?:, ?q_lora (\d+))?, ?kv_lora (\d+)$"
WINDOW = r"^(\d+)(?:, ?full every ([2-9]|\d\d+))?$"


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
        vocab_size=_embedding_rows(integer_of(row, "vocab", default=USUAL_VOCABULARY), tensor_parallel_size),
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


def _embedding_rows(vocabulary: int, tensor_parallel_size: int) -> int:
    """Rows of the embedding: a multiple of 128 x tensor size, so that every rank's share suits its matrix units.

    Source: Megatron-LM, megatron/tokenizer/tokenizer.py, _vocab_size_with_padding.
    """
    return next_multiple(vocabulary, VOCABULARY_MULTIPLE * tensor_parallel_size)


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
    sizes = match_in(row, LATENT_ATTENTION, ("mla",))
    if sizes is None or not all(int(size) for size in sizes.groups()[1:] if size):
        remedy = "Write 128+64 / v 128, q_lora 1536, kv_lora 512, or no."
        raise ConfigError("mla", text_of(row, "mla"), "is no latent attention that can be read", remedy)
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
    sizes = match_in(row, WINDOW, ("attention_window",))
    if sizes is None or not int(sizes.group(1)):
        remedy = "Write 128 where all layers have it, 128, full every 2 where every second does not, or no."
        raise ConfigError("attention_window", stated, "is no window that can be read", remedy)
    return AttentionWindowSpec(size=int(sizes.group(1)), full_every=int(sizes.group(2)) if sizes.group(2) else None)
