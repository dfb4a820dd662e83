"""Attention inside documents is attention under a mask that shows each query the keys of its own document alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from train_core.model.attention import causal_attention
from train_core.model.documents import Documents
from train_core.model.dropout import AttentionWithDropout, Dropping, Randomness

NUMBERS = np.array([[4, 1], [4, 1], [4, 2], [5, 3], [5, 3], [5, 3], [6, 3], [7, 4]])


def heads(count: int) -> Tensor:
    return torch.randn(2, count, 8, 16, generator=torch.Generator().manual_seed(count), requires_grad=True)


def test_it_is_attention_under_a_mask_in_both_passes() -> None:
    documents, query, key, value = Documents.of(NUMBERS, torch.from_numpy), heads(6), heads(2), heads(2)
    seen = functional.scaled_dot_product_attention(query, key, value, documents.mask, enable_gqa=True)
    expected = torch.autograd.grad(seen.square().sum(), (query, key, value))
    out = causal_attention(query, key, value, documents=documents)
    torch.testing.assert_close(out, seen)
    for gradient, of_mask in zip(torch.autograd.grad(out.square().sum(), (query, key, value)), expected, strict=True):
        torch.testing.assert_close(gradient, of_mask)


def test_a_document_that_fills_its_sequence_has_the_bits_of_one_that_is_not_separate() -> None:
    documents = Documents.of(np.ones((8, 2), dtype=np.int64), torch.from_numpy)
    query, key, value = heads(4), heads(4), heads(4)
    for sequence in range(2):  # one after the other, as document by document
        alone = causal_attention(query[sequence, None], key[sequence, None], value[sequence, None])
        assert torch.equal(causal_attention(query, key, value, documents=documents)[sequence, None], alone)


def test_scores_are_dropped_alike_on_whichever_tensor_rank_a_head_is() -> None:
    documents, dropping = Documents.of(NUMBERS, torch.from_numpy), Dropping(0.5, Randomness(1, 0, 2))
    query, key, value = heads(4), heads(4), heads(4)
    whole = AttentionWithDropout("core", 0, dropping)(query, key, value, documents=documents)
    halves = [
        AttentionWithDropout("core", part, dropping)(
            *(each.chunk(2, dim=1)[part] for each in (query, key, value)), documents=documents
        )
        for part in range(2)
    ]
    assert torch.equal(whole, torch.cat(halves, dim=2))
    assert not torch.equal(whole, AttentionWithDropout("core", 1, dropping)(query, key, value, documents=documents))
