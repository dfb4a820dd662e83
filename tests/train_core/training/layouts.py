"""Layouts that are held against one rank or an oracle, and the families of models that are trained in them."""

from __future__ import annotations

from typing import Any, NamedTuple

GLOBAL_BATCH_SIZE = 16
NUM_STEPS = 3
TRAINING = {
    "batch.global_batch_size": GLOBAL_BATCH_SIZE,
    "training.num_steps": NUM_STEPS,
    "training.clip_gradient_norm": 0.5,  # well below the norms of these models, so that clipping acts
    "training.learning_rate": 3e-3,  # a higher one lets rounding grow from step to step
    # Some gradients are zero but for rounding (the bias of the keys). With the usual epsilon Adam would turn that
    # rounding into full steps, and no two orders of summation could agree.
    "training.adam_epsilon": 1e-3,
}
CURVE: dict[str, Any] = {
    "model.num_layers": 4,
    "batch.global_batch_size": 8,
    "batch.micro_batch_size": 2,
    "training.num_steps": 6,
    "training.learning_rate": 1e-2,
    "training.learning_rate_warmup_steps": 2,
}
"""A training that is saved in its middle, and goes on in another layout."""
SAVING = {"checkpoint.every_steps": 3, "checkpoint.asynchronous": False}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama": {
        "model.family": "llama",
        "model.gated_mlp": True,
        "model.tied_embeddings": False,
        "model.rotary_base": 10000.0,
        "model.num_query_groups": 4,
    },
}
BIASED_LLAMA = FAMILIES["llama"] | {"model.qkv_bias": True, "model.norm_epsilon": 1e-3}
"""As Qwen2 is, whose rows of biases are cut as those of the weights are."""
NORMED_LLAMA = FAMILIES["llama"] | {"model.qk_norm": True, "model.head_size": 12}
"""As Qwen3 is, whose heads together are wider than the model."""
SHORT_VECTORS = {"query_rank": 12, "key_value_rank": 10, "rotary_head_size": 4, "value_head_size": 6}
LATENT_LLAMA = FAMILIES["llama"] | {
    "model.num_query_groups": 8,
    "model.head_size": 10,
    "model.latent_attention": SHORT_VECTORS,
}
"""As DeepSeek-V3 is, whose values are narrower than queries and keys."""
MIXTURE = FAMILIES["llama"] | {
    "model.experts": {
        "num_experts": 8,
        "top_k": 2,
        "ffn_hidden_size": 48,
        "shared_ffn_hidden_size": 64,
        "num_dense_layers": 1,
        "balance_loss": 0.05,
    }
}
"""The first layer is dense, and the others have an expert for all tokens beside the eight."""


def mixture_with(**experts: Any) -> dict[str, Any]:
    """The same with other values of its experts."""
    return MIXTURE | {"model.experts": MIXTURE["model.experts"] | experts}


class Layout(NamedTuple):
    """`recompute` is (what, in every how many layers)."""

    tensor: int
    pipeline: int
    data: int
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    zero_stage: int = 0
    recompute: tuple[str, int] = ("none", 1)
    family: str = "gpt"
    num_micro_batches: int | None = None
    layers_per_stage: tuple[int, ...] | None = None
    context: int = 1
    context_exchange: str = "ring"
    expert: int = 1

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def num_chunks(self) -> int:
        return 2 if self.schedule == "interleaved" else 1

    @property
    def num_layers(self) -> int:
        """One more than the stages or chunks, so that they are uneven, unless the layers of each stage are given."""
        return sum(self.layers_per_stage) if self.layers_per_stage else self.pipeline * self.num_chunks + 1

    def model(self) -> dict[str, Any]:
        groups = {"model.num_query_groups": 8} if self.tensor == 8 else {}
        others = {"qwen2": BIASED_LLAMA, "qwen3": NORMED_LLAMA, "latent": LATENT_LLAMA, "mixture": MIXTURE}
        others["latent mixture"] = MIXTURE | LATENT_LLAMA
        return {"model.num_layers": self.num_layers} | (others.get(self.family) or FAMILIES[self.family]) | groups

    def values(self, dtype: str = "fp32") -> dict[str, Any]:
        num_micro_batches = self.num_micro_batches or max(2, self.pipeline)
        return (
            TRAINING
            | self.model()
            | {
                "precision.dtype": dtype,
                "parallel.world_size": self.num_ranks,
                "parallel.tensor_parallel_size": self.tensor,
                "parallel.pipeline_parallel_size": self.pipeline,
                "parallel.context_parallel_size": self.context,
                "parallel.context_exchange": self.context_exchange,
                "parallel.expert_parallel_size": self.expert,
                "parallel.expert_tensor_parallel_size": 1 if "mixture" in self.family else None,
                "parallel.virtual_pipeline_size": self.num_chunks,
                "parallel.schedule": self.schedule,
                "parallel.layers_per_stage": self.layers_per_stage,
                "parallel.sequence_parallel": self.sequence_parallel,
                "parallel.zero_stage": self.zero_stage,
                "parallel.recompute": self.recompute[0],
                "parallel.recompute_every": self.recompute[1],
                "batch.micro_batch_size": GLOBAL_BATCH_SIZE // (self.data * num_micro_batches),
            }
        )

    def values_on_one_rank(self, dtype: str = "fp32") -> dict[str, Any]:
        """The same model, trained without any parallelism."""
        return Layout(1, 1, 1, num_micro_batches=4).values(dtype) | self.model()
