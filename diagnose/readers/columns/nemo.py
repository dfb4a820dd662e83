"""NeMo and Megatron-Bridge: their YAML and Hydra overrides as the names of Megatron, which they share but for a few.

Source: megatron_gpt_config.yaml of NVIDIA/NeMo 1; nemo.lightning's strategies and nemo_run's recipes; ConfigContainer
of NVIDIA-NeMo/Megatron-Bridge.
"""

from __future__ import annotations

from diagnose.readers.columns.megatron import fill_megatron
from diagnose.readers.said import Columns
from diagnose.runs import Fact, SaidBy

SECTIONS = (
    *("model.config.", "model.", "train.", "ddp.", "optimizer.", "dataset.", "comm_overlap.", "dist.", "logger."),
    *(
        "trainer.strategy.",
        "trainer.strategy.ddp.",
        "trainer.",
        "data.",
        "model.data.",
        "model.optim.",
        "optim.config.",
    ),
)
"""The parts of a configuration whose keys are Megatron's."""
DEVICES, NODES = ("devices", "num_gpus_per_node", "gpus_per_node"), ("num_nodes", "nodes")
GATED = ("fast-swiglu", "swiglu", "geglu", "reglu", "fast-geglu", "fast-reglu")


def fill_nemo(columns: Columns) -> None:
    """Put what NeMo's own words say into columns, then what Megatron's say."""
    settings, run = columns.settings, columns.run
    said = settings.fact("tensor_model_parallel_size", "micro_batch_size", "num_layers")
    run.trainer = run.trainer or Fact(
        "megatron-core", SaidBy.COMPUTED, said.at if said else None, f"which {run.program} runs"
    )
    per_node, nodes = settings.whole(*DEVICES), settings.whole(*NODES)
    if per_node and nodes:
        columns.put("num_gpus", per_node * nodes, *DEVICES, note=f"{nodes} x {per_node}")
    columns.whole("gpus_per_node", *DEVICES)
    if (activation := settings.text("activation")) or settings.is_known("gated_linear_unit"):
        columns.put(
            "gated_mlp",
            activation in GATED or bool(settings.truth("gated_linear_unit")),
            "activation",
            "gated_linear_unit",
        )
    if settings.text("model.optim.name", "optim.name") == "distributed_fused_adam":
        columns.put("zero_stage", "1", "model.optim.name", "optim.name")
    if (reduces := settings.truth("grad_reduce_in_fp32")) is not None:
        columns.put("gradient_dtype", "fp32" if reduces else "bf16", "grad_reduce_in_fp32")
    columns.whole("seq", "encoder_seq_length", "sequence_length", "seq_length")
    columns.whole("kv_heads", "num_query_groups")
    _fill_precision(columns)
    if settings.has_arguments:
        columns.assumed("precision", "bf16", "as NeMo's recipes have it")
    if settings.is_known("recipe"):
        columns.assumed("zero_stage", "1", "as NeMo's recipes have it")
    fill_megatron(columns)


def _fill_precision(columns: Columns) -> None:
    """NeMo and Bridge say the precision in one word: `bf16-mixed`, `bf16_with_fp8_current_scaling_mixed`."""
    named = columns.settings.fact("precision", "mixed_precision")
    if named is None or named.value[:1] in "{<":
        return
    word = named.value.lower().replace("_", "-")
    columns.take(
        "precision",
        named._replace(
            value="fp16"
            if word.startswith(("fp16", "16")) and "bf16" not in word
            else "fp32"
            if word.startswith("32")
            else "bf16"
        ),
    )
    for narrow in ("mxfp8", "nvfp4", "fp8"):
        if narrow in word:
            columns.take("matmul_precision", named._replace(value=narrow))
            recipe = next(
                (each for each in ("current", "delayed", "blockwise", "subchannel", "mx") if each in word), None
            )
            if recipe and narrow == "fp8":
                columns.take("fp8_recipe", named._replace(value=recipe))
            return
