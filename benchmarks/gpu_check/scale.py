"""The size of the checks: on GPUs, and on CPU ranks, where only the script itself is tried out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from conf.types.schema import Value

LLAMA: dict[str, Any] = {
    "model.family": "llama",
    "model.gated_mlp": True,
    "model.tied_embeddings": False,
    "model.rotary_base": 10000.0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT": {},
    "Llama": LLAMA,
    "mixture": {
        **LLAMA,
        "model.experts": {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 64, "balance_loss": 0.01},
    },
    "latent": {
        **LLAMA,
        "model.head_size": 24,
        "model.latent_attention": {
            "query_rank": 32,
            "key_value_rank": 16,
            "rotary_head_size": 8,
            "value_head_size": 16,
        },
    },
}
"""GPT ties its embeddings, so that a pipeline has to sum their gradients over its ends; the others do not."""

TRAINING: dict[str, Value] = {
    "batch.global_batch_size": 16,
    "training.num_steps": 5,
    "training.num_warmup_steps": 1,
    "training.clip_gradient_norm": 0.5,  # well below the norms of these models, so that clipping acts
    "training.learning_rate": 3e-3,
    # Some gradients are zero but for rounding. With the usual epsilon Adam would turn that rounding into full steps,
    # and no two orders of summation could agree.
    "training.adam_epsilon": 1e-3,
}


@dataclass(frozen=True)
class CheckScale:
    """Sizes and times.

    Attributes:
        model: of the small model in which layouts are compared.
        query_groups: of the Llama.
        overfull: what differs in the model whose batch is too large.
        hang_seconds: for how long a collective may wait.
        trial_seconds: the time limit of one small trial.
        start_seconds: what starting a job and its first step take on a healthy machine.
        long_steps: steps of the training that is killed; so many that it still runs by then.
        save_every: steps between its checkpoints.
    """

    model: dict[str, Value]
    query_groups: int
    overfull: dict[str, Value]
    hang_seconds: float
    trial_seconds: float
    start_seconds: float
    long_steps: int
    save_every: int


GPU = CheckScale(
    model={
        "model.num_layers": 16,  # eight stages of two chunks
        "model.hidden_size": 256,
        "model.ffn_hidden_size": 1024,
        "model.num_attention_heads": 16,
        "model.num_query_groups": 16,
        "model.seq_length": 256,
    },
    query_groups=8,
    # With sequences of usual length few are enough. Tens of thousands would meet limits of the kernels first.
    overfull={"model.hidden_size": 2048, "model.ffn_hidden_size": 8192, "model.seq_length": 2048},
    hang_seconds=30.0,
    trial_seconds=120.0,
    start_seconds=20.0,
    long_steps=100,
    save_every=10,
)
SHARED = replace(GPU, model={**GPU.model, "model.num_layers": 8})
"""Where ranks share GPUs, which take turns with their kernels: a collective takes many turns."""

CPU = CheckScale(
    model={
        "model.num_layers": 4,
        "model.hidden_size": 32,
        "model.ffn_hidden_size": 64,
        "model.num_attention_heads": 8,
        "model.num_query_groups": 8,
        "model.seq_length": 16,
    },
    query_groups=4,
    overfull={},
    hang_seconds=4.0,
    trial_seconds=60.0,
    start_seconds=4.0,
    long_steps=60,
    save_every=10,
)
