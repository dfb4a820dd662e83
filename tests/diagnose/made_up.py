"""Files as trainers write them, made up from small templates: dumps, lines about steps, scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Write = Callable[[str, str], str]
"""Writes a text under a name, and returns its path."""


def writing_into(folder: Path) -> Write:
    def write(name: str, text: str) -> str:
        path = folder / name
        path.write_bytes(text.encode())
        return str(path)

    return write


def dump(arguments: Mapping[str, object], width: int = 48, title: str = "arguments") -> str:
    """A block of arguments as Megatron-LM prints it."""
    lines = [f"  {name} {'.' * (width - len(name))} {value}" for name, value in sorted(arguments.items())]
    return "\n".join([f"{'-' * 24} {title} {'-' * 24}", *lines, f"{'-' * 20} end of {title} {'-' * 21}"]) + "\n"


def neox_dump(arguments: Mapping[str, object]) -> str:
    """The same of gpt-neox, with dots on both sides of the value."""
    return "".join(f"  {name} {'.' * (30 - len(name))} {value}{'.' * 24}updated\n" for name, value in arguments.items())


CORE = {
    "accumulate_allreduce_grads_in_fp32": True,
    "attention_backend": "AttnBackend.flash",
    "attention_dropout": 0.0,
    "bf16": True,
    "context_parallel_size": 1,
    "ffn_hidden_size": 14336,
    "fp8": None,
    "global_batch_size": 128,
    "group_query_attention": True,
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "kv_channels": 128,
    "log_interval": 10,
    "micro_batch_size": 1,
    "num_attention_heads": 32,
    "num_experts": None,
    "num_layers": 32,
    "num_query_groups": 8,
    "overlap_grad_reduce": True,
    "pipeline_model_parallel_size": 2,
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "seq_length": 8192,
    "sequence_parallel": True,
    "swiglu": True,
    "tensor_model_parallel_size": 4,
    "untie_embeddings_and_output_weights": True,
    "use_distributed_optimizer": True,
    "virtual_pipeline_model_parallel_size": None,
    "world_size": 16,
}
"""Arguments of a Llama-like model of 8 B on 16 devices, of 2024."""
SIZES = (
    "using world size: 16, data-parallel size: 2, context-parallel size: 1 tensor-model-parallel size: 4, "
    "pipeline-model-parallel size: 2\n"
)


def megatron_steps(
    seconds: Sequence[float], every: int = 10, first: int = 0, last: int = 500, batch: int = 128, decimal: str = "."
) -> str:
    """Lines about steps, one for each time, with the rate that this time would have."""
    lines = []
    for index, each in enumerate(seconds, 1):
        number = first + index * every
        milliseconds = f"{each * 1000:.1f}".replace(".", decimal)
        rate = f"{4000 / each:.1f}".replace(".", decimal)
        lines.append(
            f" [2025-03-01 10:00:{index:02}] iteration {number:8}/{last:8} | consumed samples: {number * batch:12} | "
            f"elapsed time per iteration (ms): {milliseconds} | throughput per GPU (TFLOP/s/GPU): {rate} | "
            f"learning rate: 1.000000E-05 | global batch size: {batch:5} | lm loss: 9.{index}00000E+00 | "
            "loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    return "\n".join(lines) + "\n"


def of_ranks(text: str, prefix: str, ranks: Sequence[int]) -> str:
    """A log in which each of several ranks says every line."""
    return "".join(f"{prefix.format(rank)}{line}\n" for line in text.splitlines() for rank in ranks)


TITAN = "[rank{}]:[titan] 2025-03-01 10:{:02}:{:02},123 - root - INFO - "


def titan_steps(
    rates: Sequence[int], every: int = 10, peak: float = 989.0, capacity: float = 79.1, colour: bool = False
) -> str:
    """torchtitan's lines about steps, one for each rate of tokens a second and device."""
    lines = []
    for index, rate in enumerate(rates):
        step = 1 if index == 0 else index * every
        red, end = ("\x1b[31m", "\x1b[39m") if colour else ("", "")
        tflops = rate * 0.058
        lines.append(
            f"{TITAN.format(0, index // 2, index % 2 * 30)}{red}step: {step:2}  {end}loss: {9 - index / 10:7.4f}  "
            f"memory: {0.6 * capacity:5.2f}GiB(60.00%)  tps: {rate:,}  tflops: {tflops:,.2f}  "
            f"mfu: {100 * tflops / peak:.2f}%"
        )
    return "\n".join(lines) + "\n"
