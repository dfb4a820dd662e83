"""Runs as readers would tell them, made by hand: a well-tuned one, and what a test changes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnose.runs import Fact, LoggedMemory, LoggedStep, LogLine, SaidBy, UserRun
from diagnose.understood import understood

GIB = 2**30
TUNED: Mapping[str, str] = {
    "layers": "40",
    "hidden": "5120",
    "heads": "40",
    "ffn_hidden": "13824",
    "gated_mlp": "yes",
    "seq": "4096",
    "vocab": "32000",
    "gpu": "H100-80GB-SXM",
    "num_gpus": "64",
    "tp": "2",
    "pp": "1",
    "micro_batch": "2",
    "global_batch": "256",
    "precision": "bf16",
    "recompute": "none",
    "zero_stage": "1",
    "sequence_parallel": "yes",
    "flash_attention": "yes",
}
"""Llama 2 13B on 64 H100s, as somebody who knows Megatron-Core would lay it out."""


def fact(value: str, line: int, said_by: SaidBy = SaidBy.RESOLVED) -> Fact:
    return Fact(value, said_by, LogLine("run.log", line, f"  {value}"))


def steps_of(seconds: Sequence[float], covers: int = 1, **others: object) -> list[LoggedStep]:
    return [
        LoggedStep((place + 1) * covers, each, LogLine("run.log", 100 + place, ""), covers, **others)  # type: ignore[arg-type]
        for place, each in enumerate(seconds)
    ]


def made_run(
    factor: float = 1.0,
    trainer: str = "megatron-core",
    columns: Mapping[str, str | None] | None = None,
    settings: Mapping[str, str] | None = None,
    said_by: SaidBy = SaidBy.RESOLVED,
    allocated_gib: float | None = None,
) -> UserRun:
    """The tuned run with other columns and settings, ten steps of which take `factor` times what is predicted."""
    run = UserRun("run.log", trainer=fact(trainer, 1))
    cells = {**TUNED, **(columns or {})}
    run.columns = {name: fact(value, 10 + i) for i, (name, value) in enumerate(cells.items()) if value is not None}
    run.settings = {name: fact(value, 60 + i, said_by) for i, (name, value) in enumerate((settings or {}).items())}
    predicted = understood(run, None).predicted
    run.steps = steps_of([(predicted.step_seconds if predicted else 10.0) * factor] * 10)
    if allocated_gib is not None:
        held = allocated_gib * GIB
        run.memory.append(LoggedMemory(0, held, held + 6 * GIB, LogLine("run.log", 99, "")))
    return run
