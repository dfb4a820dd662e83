"""What each trainer cannot run. Names are those of `declared.IMPLEMENTATIONS`."""

from __future__ import annotations

from train_core.costs.trainers.capabilities import LAYER_SPLIT, Capabilities, Limit

NO_TENSOR = Limit(key="parallel.tensor_parallel_size", values=(1,), because="it does not split matrices")
NO_PIPELINE = Limit(key="parallel.pipeline_parallel_size", values=(1,), because="it has no pipelines")
NO_SEQUENCE = Limit(key="parallel.sequence_parallel", values=(False,), because="it does not split matrices")
ONLY_1F1B = Limit(key="parallel.schedule", values=("1f1b",), because="its pipeline runs 1F1B alone")
NO_ZERO_BUBBLE = Limit(
    key="parallel.schedule", values=("1f1b", "interleaved"), because="it has 1F1B and its interleaved form alone"
)
EVEN_STAGES = Limit(key=LAYER_SPLIT, values=("even",), because="it cuts stages of equal numbers of layers")
EVERY_LAYER = Limit(
    key="parallel.recompute_every", values=(1,), because="it recomputes every layer, or the first ones of a stage"
)
NO_POINTWISE = Limit(
    key="parallel.recompute", values=("none", "selective", "full"), because="it cannot choose single operations"
)
WHOLE_LAYERS = Limit(key="parallel.recompute", values=("none", "full"), because="it recomputes whole layers or nothing")
NO_CONTEXT = Limit(
    key="parallel.context_parallel_size", values=(1,), because="it does not share out a sequence's attention"
)
NO_EXPERTS = Limit(key="model.experts", values=(None,), because="its layers have no experts")
NO_EXPERT_RANKS = Limit(key="parallel.expert_parallel_size", values=(1,), because="its layers have no experts")
NO_EXPERT_TENSOR_RANKS = Limit(
    key="parallel.expert_tensor_parallel_size", values=(None,), because="its layers have no experts"
)
NO_LATENT_ATTENTION = Limit(key="model.latent_attention", values=(None,), because="its layers have no latent attention")
NO_ZERO_GROUPS = Limit(key="parallel.zero_group_size", values=(None,), because="it shares out among all replicas")
NO_OFFLOAD = Limit(
    key="parallel.offload_optimizer", values=(False,), because="it keeps the optimizer's state on the device"
)
DATA_BEFORE_PIPELINE = Limit(
    key="parallel.pipeline_before_data", values=(False,), because="its neighbouring ranks hold the same stage"
)
NO_NARROW_PRODUCTS = Limit(
    key="precision.matmul_recipe", values=(None,), because="it multiplies in the type of its weights"
)
UP_TO_ZERO_1 = Limit(
    key="parallel.zero_stage", values=(0, 1), because="it shares out the optimizer's state alone, or nothing"
)
WHOLE_GRADIENTS = Limit(
    key="parallel.zero_stage", values=(0, 1), because="its pipeline keeps gradients whole", beside="pipeline"
)
SHARDED_GRADIENTS = Limit(
    key="parallel.zero_stage", values=(0, 2, 3), because="it shards gradients with the optimizer's state, or nothing"
)

DENSE_MODELS = (NO_CONTEXT, NO_EXPERTS, NO_EXPERT_RANKS, NO_EXPERT_TENSOR_RANKS, NO_LATENT_ATTENTION)
ONLY_REPLICAS = (NO_TENSOR, NO_PIPELINE, NO_SEQUENCE, WHOLE_LAYERS, EVERY_LAYER, *DENSE_MODELS)
OF_2021 = (
    NO_POINTWISE,
    EVERY_LAYER,
    *DENSE_MODELS,
    NO_NARROW_PRODUCTS,
    *(NO_ZERO_GROUPS, NO_OFFLOAD),
    DATA_BEFORE_PIPELINE,
)

CAPABILITIES = {
    "trisweep": Capabilities(
        limits=(*DENSE_MODELS, NO_NARROW_PRODUCTS, NO_ZERO_GROUPS, NO_OFFLOAD, DATA_BEFORE_PIPELINE),
        interleaves_unevenly=True,
    ),
    "megatron-lm": Capabilities(limits=(NO_ZERO_BUBBLE, EVEN_STAGES, UP_TO_ZERO_1, *OF_2021)),
    "megatron-deepspeed": Capabilities(limits=(ONLY_1F1B, WHOLE_GRADIENTS, *OF_2021)),
    "megatron-core": Capabilities(
        limits=(
            NO_ZERO_BUBBLE,
            EVERY_LAYER,
            Limit(
                key="parallel.zero_stage",
                values=(0, 1),
                because="its FSDP, which is ZeRO-2 and ZeRO-3, runs without a pipeline here",
                beside="pipeline",
            ),
            Limit(
                key="precision.matmul_recipe",
                values=(None, "fp8-delayed", "fp8-tensorwise", "fp8-blockwise", "mxfp8", "nvfp4"),
                because="Transformer Engine does not scale by rows",
            ),
            Limit(
                key="parallel.recompute",
                values=("none", "selective", "full"),
                because="with delayed scaling it does not make outputs of norms and activations again",
                recipes=("fp8-delayed",),
            ),
        ),
        interleaves_unevenly=True,  # --decoder-first-pipeline-num-layers, --microbatch-group-size-per-vp-stage
    ),
    "fsdp": Capabilities(
        limits=(
            *ONLY_REPLICAS,
            SHARDED_GRADIENTS,
            NO_OFFLOAD,
            Limit(
                key="precision.matmul_recipe",
                values=(None, "fp8-delayed"),
                because="its narrow products are Transformer Engine's of 2023",
            ),
        )
    ),
    "torchtitan": Capabilities(
        limits=(
            Limit(
                key="parallel.schedule",
                values=("1f1b", "interleaved", "gpipe"),
                because="its zero-bubble schedules need two stages on a rank",
            ),
            Limit(
                key=LAYER_SPLIT,
                values=("even", "ends"),
                because="only its first and last stage may differ from the others",
            ),
            Limit(
                key="parallel.sequence_parallel",
                values=(True,),
                because="with tensor parallelism it always shards sequences too",
                beside="tensor",
            ),
            SHARDED_GRADIENTS,
            NO_POINTWISE,
            EVERY_LAYER,
            DATA_BEFORE_PIPELINE,
            NO_OFFLOAD,
            NO_LATENT_ATTENTION,
            Limit(key="precision.dtype", values=("bf16", "fp32"), because="it trains in bf16 or fp32"),
            Limit(key="precision.gradient_dtype", values=("fp32",), because="it reduces gradients in fp32"),
            Limit(
                key="precision.matmul_recipe",
                values=(None, "fp8-tensorwise", "fp8-rowwise", "mxfp8"),
                because="torchao scales by tensors, by rows, or in blocks of 32",
            ),
        )
    ),
    "deepspeed": Capabilities(limits=(*ONLY_REPLICAS, NO_NARROW_PRODUCTS)),
}
"""Sources: the papers and tables that each trainer is fitted on, and the parsers that its file in conf/trainer was held
against. What a program has gained since stands in that file, and is refused there and not here."""
