"""The matrices of a layer, from which its parameters, its FLOPs and the products of a rank are counted."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from conf.model_spec import ModelSpec

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

    The ways down to short vectors are one matrix here. Source: arXiv 2405.04434, section 2.1 and appendix C.
    """
    h, latent = model.hidden_size, model.latent_attention
    output = Matrix(h, model.attended_size, "rows")
    if latent is None:
        return (Matrix(model.query_size + 2 * model.key_value_size, h, "columns"), output)
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
