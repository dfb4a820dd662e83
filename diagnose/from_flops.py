"""The sequence, the batch or the experts of a token, where one of them is missing, from the FLOPs that the log counts.

The rate that a log prints, times the time and the devices, is what its trainer counts of a step. One unknown of a step
follows from that, where one value alone fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conf.units import TERA
from costs.counts.flops import attention_core_forward_flops
from diagnose.measured import MeasuredSteps
from diagnose.readers import missing_of
from diagnose.readers.computed import LIKELY_SEQUENCES
from diagnose.runs import Fact, SaidBy, UserRun
from diagnose.understood import Understood, understood

WITHIN = 0.01
"""What a printed rate and time are rounded to, and what trainers count beside products of matrices."""
MOST_EXPERTS = 16


def told_by_flops(run: UserRun, measured: MeasuredSteps | None) -> UserRun:
    """The run with the one fact that its price lacks, where the FLOPs of its steps tell it; else the run itself."""
    lacking = [each.column for each in missing_of(run)]
    rate = measured.flops_per_second if measured else None
    if measured is None or rate is None or len(lacking) != 1 or "num_gpus" in lacking:
        return run
    column, devices = lacking[0], int(run.columns["num_gpus"].value)
    done = rate * measured.step_seconds * devices
    note = f"{rate / TERA:,.1f} TFLOPS x {measured.step_seconds:.4g} s x {devices:,} devices, as the log counts"

    def with_value(value: int) -> UserRun:
        fact = Fact(str(value), SaidBy.COMPUTED, measured.steady[0].at, note)
        return replace(run, columns={**run.columns, column: fact})

    fitting = set()
    for value in _candidates(run, column):
        known = understood(with_value(value), measured.step_seconds)
        for counted in _counts(known):
            times = max(1, round(done / counted)) if column == "global_batch" else 1
            if abs(done / counted / times - 1) <= WITHIN:
                fitting.add(value * times)
    return with_value(fitting.pop()) if len(fitting) == 1 else run


def _candidates(run: UserRun, column: str) -> Iterator[int]:
    """Values to try; of a batch the smallest one, which a step holds so many times."""
    if column == "seq":
        yield from LIKELY_SEQUENCES
    elif column == "top_k":
        yield from range(1, min(MOST_EXPERTS, int(run.columns["num_experts"].value)) + 1)
    elif column == "global_batch":
        tensor, pipeline, context = (_count(run, name) for name in ("tp", "pp", "cp"))
        yield _count(run, "num_gpus") // (tensor * pipeline * context) * _count(run, "micro_batch") or 1


def _count(run: UserRun, column: str) -> int:
    fact = run.columns.get(column)
    return int(fact.value) if fact and fact.value.isdigit() else 1


def _counts(known: Understood) -> list[float]:
    """The FLOPs of a step as its trainer's log counts them; Megatron-Core's two ways, of which a log does not say one.

    Source: Megatron-LM, training.py, num_floating_point_operations, which since 2025 leaves out the half of the scores
    that a mask hides; Megatron-DeepSpeed, utils.py, throughput_calculator, which counts what is recomputed.
    """
    predicted, configuration = known.predicted, known.configuration
    if predicted is None or configuration is None:
        return []
    if configuration.implementation.name == "megatron-deepspeed":
        return [predicted.hardware_flops]
    setup = configuration.setup
    hidden = attention_core_forward_flops(setup.model, setup.batch.global_batch_size)
    half = predicted.model_flops - 1.5 * setup.model.num_layers * hidden
    return (
        [predicted.model_flops, half]
        if configuration.implementation.name == "megatron-core"
        else [predicted.model_flops]
    )
