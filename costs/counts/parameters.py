"""The number of parameters of the model, in all and on one rank. Sizes may be numbers or arrays of any shape.

Prices are in columns of 64-bit integers; at the end stands the largest model and micro-batch for which these are exact.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from conf.errors import ConfigError
from conf.types.model_spec import LinearAttentionSpec, ModelSpec
from costs.setting import Size


def num_parameters(model: ModelSpec) -> int:
    """All trainable parameters, a tied embedding counted once.

    Source: arXiv 2104.04473, equation 2, with the final norm and biases counted exactly.
    """
    sparse, once = model.num_layers - model.num_dense_layers, model.vocab_size * ("head_bias" in model.parts)
    of_sparse = layer_parameters(model, 1) + experts_parameters(model, 1, 1) if sparse else 0
    return (
        sparse * of_sparse
        + model.num_dense_layers * dense_layer_parameters(model, 1)
        + embedding_parameters(model, 1)
        + final_norm_parameters(model)
        + once
        + _all_attention(model, 1) % model.num_layers  # of layers that differ a layer has the mean
        + (0 if model.tied_embeddings else token_embedding_parameters(model, 1))
    )


def dense_layer_parameters(model: ModelSpec, tensor_parallel_size: Size) -> Size:
    """One layer with an ordinary feed-forward layer on one tensor rank: matrices, norms and biases."""
    return _shared_parameters(model, model.ffn_hidden_size, tensor_parallel_size)


def layer_parameters(model: ModelSpec, tensor_parallel_size: Size) -> Size:
    """Count the parameters of a layer that tensor ranks share: all but the experts spread over further ranks."""
    experts = model.experts
    if experts is None:
        return dense_layer_parameters(model, tensor_parallel_size)
    router = experts.num_experts * (model.hidden_size + (not {"router_bias", "choice_bias"}.isdisjoint(model.parts)))
    gate = model.hidden_size * ("shared_gate" in model.parts)
    return _shared_parameters(model, experts.shared_ffn_hidden_size, tensor_parallel_size) + router + gate


def experts_parameters(model: ModelSpec, expert_parallel_size: Size, expert_tensor_parallel_size: Size) -> Size:
    """The experts of one layer on one rank: `num_experts / expert_parallel_size` of them, or parts of so many."""
    experts = model.experts
    assert experts is not None
    matrices = feed_forward_matrices(model, experts.ffn_hidden_size)
    each: Size = _share_of(matrices, expert_tensor_parallel_size, model.has_mlp_bias, model.has_mlp_bias)
    return experts.num_experts // expert_parallel_size * each


def _shared_parameters(model: ModelSpec, ffn_hidden_size: int, t: Size) -> Size:
    """Attention, a feed-forward layer of this width, the norms around them and what an activation learns."""
    feed_forward = _share_of(feed_forward_matrices(model, ffn_hidden_size), t, model.has_mlp_bias, model.has_mlp_bias)
    norms = 1 if "one_norm" in model.parts else num_norms(model)
    learned = 2 * ("learned_activation" in model.parts)
    return _all_attention(model, t) // model.num_layers + feed_forward + norms * final_norm_parameters(model) + learned


NUM_NORMS = 2
"""Of a layer: before attention and before the feed-forward network, or behind both."""


def num_norms(model: ModelSpec) -> int:
    """The norms of a layer, with those behind attention and the feed-forward network where a model has them too."""
    return 2 * NUM_NORMS if "post_norms" in model.parts else NUM_NORMS


def _all_attention(model: ModelSpec, t: Size) -> Size:
    """Attention of all layers with its biases and norms; vectors are whole on each rank."""
    latent, parts, linear = model.latent_attention, model.parts, model.linear_attention
    vectors = 2 * head_norm_size(model)
    of_heads = model.num_attention_heads * ("sinks" in parts)
    of_heads += (model.query_size + model.key_value_size) * ("wide_qk_norm" in parts)
    if latent is not None:  # the short vectors have norms of their own
        vectors += (latent.query_rank or 0) + latent.key_value_rank
    full = (
        _share_of(_full_attention_matrices(model), t, model.has_qkv_bias, model.has_output_bias)
        + vectors
        + of_heads // t
    )
    if linear is None:
        return model.num_layers * full
    mixed = (2 * linear.key_size + linear.value_size) * linear.convolution_width
    vectors = mixed + 2 * linear.num_value_heads + linear.value_head_size
    others = _share_of(_linear_attention_matrices(model, linear), t, False, False) + vectors
    return model.num_full_layers * full + (model.num_layers - model.num_full_layers) * others


def norms_follow(model: ModelSpec) -> bool:
    """True if norms come behind attention and the feed-forward network, and so are the first of a backward pass."""
    return not {"post_norms", "norms_behind"}.isdisjoint(model.parts)


def head_norm_size(model: ModelSpec) -> int:
    """Parameters of the norm of a query head, and of a key head; 0 where a model has none."""
    return model.query_size // model.num_attention_heads if model.qk_norm else 0


def _share_of(matrices: tuple[Matrix, ...], t: Size, column_biases: bool, row_biases: bool) -> Size:
    """Matrices on one of `t` ranks, with biases of column and of row products."""
    shared = sum(matrix.size for matrix in matrices if matrix.split != "nothing")
    whole = sum(matrix.size for matrix in matrices if matrix.split == "nothing")
    # Biases of column products are split with their outputs; those of row products and of norms are whole on each rank.
    shared += sum(matrix.columns for matrix in matrices if column_biases and matrix.split == "columns")
    whole += sum(matrix.columns for matrix in matrices if row_biases and matrix.split == "rows")
    return shared // t + whole


def embedding_parameters(model: ModelSpec, tensor_parallel_size: Size) -> Size:
    """Tokens (split over the vocabulary) and, for the GPT family, positions (whole on every rank)."""
    positions = model.seq_length * model.hidden_size if model.family == "gpt" else 0
    norm = final_norm_parameters(model) * ("embedding_norm" in model.parts)
    return token_embedding_parameters(model, tensor_parallel_size) + positions + norm


def token_embedding_parameters(model: ModelSpec, tensor_parallel_size: Size) -> Size:
    return model.vocab_size // tensor_parallel_size * model.hidden_size


def final_norm_parameters(model: ModelSpec) -> int:
    with_bias = model.family == "gpt" or "norm_bias" in model.parts
    return 0 if "no_norms" in model.parts else (1 + with_bias) * model.hidden_size


Split: TypeAlias = Literal["columns", "rows", "nothing"]


class Matrix(NamedTuple):
    """A matrix that every token is multiplied by.

    Attributes:
        columns: output features.
        depth: input features.
        split: what tensor ranks share out: output features, input features, or nothing, so that each holds the whole.
    """

    columns: int
    depth: int
    split: Split

    @property
    def size(self) -> int:
        return self.columns * self.depth


def attention_matrices(model: ModelSpec) -> tuple[Matrix, ...]:
    """Queries, keys and values in one matrix, then the output's; of latent attention the ways down and up before it.

    Where layers have linear attention, the matrices of a mean layer.
    """
    full, linear, num_full = _full_attention_matrices(model), model.linear_attention, model.num_full_layers
    if linear is None:
        return full
    pairs = zip(full, _linear_attention_matrices(model, linear), strict=True)
    rest = model.num_layers - num_full
    return tuple(
        Matrix(
            (num_full * one.columns + rest * other.columns) // model.num_layers,
            (num_full * one.depth + rest * other.depth) // model.num_layers,
            one.split,
        )
        for one, other in pairs
    )


def _linear_attention_matrices(model: ModelSpec, linear: LinearAttentionSpec) -> tuple[Matrix, ...]:
    """Queries, keys, values, their gate, and two numbers for each head of values in one matrix, then the output's."""
    columns = 2 * (linear.key_size + linear.value_size + linear.num_value_heads)
    return Matrix(columns, model.hidden_size, "columns"), Matrix(model.hidden_size, linear.value_size, "rows")


def _full_attention_matrices(model: ModelSpec) -> tuple[Matrix, ...]:
    """The same of a layer with softmax attention.

    The ways down to short vectors are one matrix here. Source: arXiv 2405.04434, section 2.1 and appendix C.
    """
    h, latent = model.hidden_size, model.latent_attention
    output = Matrix(h, model.attended_size, "rows")
    if latent is None:
        gate = model.query_size * ("query_gate" in model.parts)
        return (Matrix(model.query_size + gate + 2 * model.key_value_size, h, "columns"), output)
    down = (latent.query_rank or 0) + latent.key_value_rank + latent.rotary_head_size
    unrotated = model.query_size - model.num_attention_heads * latent.rotary_head_size
    return (
        Matrix(down, h, "nothing"),
        Matrix(model.query_size, latent.query_rank or h, "columns"),
        Matrix(unrotated + model.value_size, latent.key_value_rank, "columns"),
        output,
    )


def feed_forward_matrices(model: ModelSpec, ffn_hidden_size: int) -> tuple[Matrix, ...]:
    """The way up, with its gate where there is one, and the way down; nothing where the width is 0."""
    if not ffn_hidden_size:
        return ()
    up = (2 if model.gated_mlp else 1) * ffn_hidden_size
    return (Matrix(up, model.hidden_size, "columns"), Matrix(model.hidden_size, ffn_hidden_size, "rows"))


LARGEST_SIZE = 2**56  # elements, parameters or products; bytes and FLOPs of anything larger could leave 64 bits


def largest_micro_batch_size(model: ModelSpec) -> int:
    """The largest micro-batch for which all sizes fit in 64 bits; 0 if those of the parameters alone do not."""
    return 0 if num_parameters(model) > LARGEST_SIZE else LARGEST_SIZE // _largest_of_a_sequence(model)


def _largest_of_a_sequence(model: ModelSpec) -> int:
    """Return the elements that all layers may keep of a sequence, or the products of an attention core, if more."""
    scores = model.seq_length * model.num_attention_heads
    widths = scores + model.query_size + model.hidden_size + model.ffn_hidden_size + model.vocab_size
    return model.seq_length * max(model.num_layers * widths, model.seq_length * model.query_size)


def require_computable(model: ModelSpec, micro_batch_size: int) -> None:
    """Refuse sizes, such as those of a typing error, that 64-bit arithmetic would silently turn into nonsense.

    Raises:
        ConfigError: the model or the micro-batch has such sizes.
    """
    most = largest_micro_batch_size(model)
    if micro_batch_size <= most:
        return
    if most:
        problem = f"is too large to price: {model.name} takes {most:,} at most"
        raise ConfigError("batch.micro_batch_size", micro_batch_size, problem, "Correct it, or model.seq_length.")
    billions = num_parameters(model) / 1e9
    raise ConfigError(
        "model.hidden_size",
        model.hidden_size,
        f"makes a model of {billions:,.0f} billion parameters, which is too large to price",
        "Correct model.num_layers, model.hidden_size or model.seq_length.",
    )
