"""What a price still needs and nobody says: by name, and where it would stand."""

from __future__ import annotations

from typing import NamedTuple

from diagnose.runs import Fact, UserRun
from sweeps.table.columns import DEVICE_COLUMNS, REQUIRED_COLUMNS

PLACES: dict[str, dict[str, str]] = {
    "megatron": {
        "layers": "--num-layers",
        "hidden": "--hidden-size",
        "heads": "--num-attention-heads",
        "seq": "--seq-length",
        "num_gpus": "--nnodes and --nproc_per_node of torchrun, or the line `using world size`",
        "tp": "--tensor-model-parallel-size",
        "pp": "--pipeline-model-parallel-size",
        "micro_batch": "--micro-batch-size",
        "global_batch": "--global-batch-size",
        "top_k": "--moe-router-topk",
    },
    "hf-trainer": {
        "seq": "cutoff_len, max_seq_length or block_size: the length to which sequences are padded or packed",
        "num_gpus": "--num_processes of accelerate, --nproc_per_node of torchrun, or the banner's total batch size",
        "micro_batch": "per_device_train_batch_size, or train_micro_batch_size_per_gpu",
        "global_batch": "gradient_accumulation_steps, and the devices",
    },
    "nanotron": {"micro_batch": "tokens.micro_batch_size", "seq": "tokens.sequence_length"},
    "nemo": {"num_gpus": "trainer.num_nodes and trainer.devices", "seq": "model.encoder_seq_length or data.seq_length"},
    "torchtitan": {
        "layers": "model.name and model.flavor of the TOML, or the line `Model ... size`",
        "hidden": "model.name and model.flavor of the TOML, or the line `Model ... size`",
        "heads": "model.name and model.flavor of the TOML, or the line `Model ... size`",
        "seq": "training.seq_len",
        "num_gpus": "the line `Building ... device mesh`, or NGPU and --nproc_per_node of the launch",
        "tp": "parallelism.tensor_parallel_degree",
        "pp": "parallelism.pipeline_parallel_degree",
        "micro_batch": "training.local_batch_size",
        "global_batch": "training.global_batch_size, or the devices",
    },
}
ANYWHERE = {
    "layers": "num_hidden_layers of the model's config.json",
    "hidden": "hidden_size of the model's config.json",
    "heads": "num_attention_heads of the model's config.json",
    "seq": "the length to which sequences are padded or packed",
    "num_gpus": "the launch: nodes times devices of a node",
    "tp": "tensor-parallel size",
    "pp": "pipeline stages",
    "micro_batch": "sequences of one forward pass on one device",
    "global_batch": "sequences of one optimizer step on all devices",
    "gpu": "what `nvidia-smi -L` prints",
    "top_k": "experts that a token passes through",
}
OF_A_FAMILY = {
    "megatron-deepspeed": "megatron",
    "gpt-neox": "megatron",
    "megatron-bridge": "nemo",
    "deepspeed": "hf-trainer",
}


class MissingFact(NamedTuple):
    """A column that nobody fills.

    Attributes:
        column: of `trisweep estimate`.
        place: where it would stand, in the trainer's words.
        at: the line that has it unresolved, such as `--nnodes $NNODES`; None where no line has.
        give: how to say it on the command line.
    """

    column: str
    place: str
    at: Fact | None
    give: str


def missing_of(run: UserRun) -> list[MissingFact]:
    """The columns without which a run has no price, in their order; empty where it has one."""
    lacking = [column for column in REQUIRED_COLUMNS if column not in run.columns]
    if not any(column in run.columns for column in DEVICE_COLUMNS):
        lacking.append("gpu")
    if "num_experts" in run.columns and "top_k" not in run.columns:
        lacking.append("top_k")
    return [_missing(run, column) for column in lacking]


def _missing(run: UserRun, column: str) -> MissingFact:
    program = run.program or ""
    place = PLACES.get(OF_A_FAMILY.get(program, program), {}).get(column) or ANYWHERE.get(column, column)
    give = "cluster=dgx-h100, or gpu=H100" if column == "gpu" else f"{column}=NUMBER"
    return MissingFact(column, place, _unresolved(run, place), give)


def _unresolved(run: UserRun, place: str) -> Fact | None:
    """The fact that stands there with a variable in it that nobody sets."""
    names = [word.strip("-`,").replace("-", "_") for word in place.split()]
    known = (run.settings.get(name) for name in names)
    return next((fact for fact in known if fact and ("$" in fact.value or fact.value == "auto")), None)
