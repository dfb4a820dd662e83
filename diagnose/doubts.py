"""Whether a measurement can be true: rates beyond the device, shares of a wrong peak, counts that contradict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conf.folders import options, path_of
from conf.types.cluster_spec import DeviceSpec, narrow_dtype
from conf.units import GIBIBYTE, TERA
from conf.yaml_text import file_text, yaml_content
from costs import Estimate
from diagnose.measured import MeasuredSteps
from diagnose.memory_risk import MemoryRisk
from diagnose.runs import LogLine
from diagnose.understood import Understood
from sweeps.table.prices import RowPrediction
from sweeps.table.recompute_check import recompute_doubt

CLOSE = 0.05
"""Two figures that differ by less than this share are taken for one."""
MOST_CONVENTION = 1.6
"""Conventions of counting a step's FLOPs differ by recomputation (4/3) and by attention; not by more than this."""
PEAK_CLOSE = 0.03
LITTLE_MEMORY = 0.6
UNLIKELY = 0.01
"""A plan that is less likely to fit than this, and ran, is not the one that was understood."""


@dataclass(frozen=True)
class Doubt:
    """A reason to read a figure of the log otherwise.

    Attributes:
        impossible: nothing could have measured this, so that the run is not compared with its prediction.
    """

    says: str
    at: LogLine | None = None
    impossible: bool = False


def doubts(understood: Understood, measured: MeasuredSteps) -> list[Doubt]:
    return [*_about_steps(measured), *_about_rates(understood, measured), *_about_memory(understood, measured)]


def _about_steps(measured: MeasuredSteps) -> Iterator[Doubt]:
    at = measured.steady[0].at
    if measured.holds_first_step:
        yield Doubt(
            "its one line about steps holds the first step, which compiles and loads: wait for a second one", at
        )
    if measured.other_batches:
        sizes = sorted({*measured.other_batches, measured.batch or 0})
        words = ", ".join(f"{size:,}" for size in sizes)
        yield Doubt(f"the batch changes while it runs ({words} sequences): lines of {measured.batch:,} are taken", at)
    if not measured.is_steady:
        yield Doubt("there is no steady state: no single number says how long a step takes", at)


def _about_rates(understood: Understood, measured: MeasuredSteps) -> Iterator[Doubt]:
    configuration, predicted = understood.configuration, understood.predicted
    at, logged = measured.steady[0].at, measured.flops_per_second
    if configuration is None or predicted is None:
        if logged and measured.mfu:
            yield Doubt(f"its rate over its share is a peak of {_peak_in_words(logged / measured.mfu)}", at)
        return
    setup = configuration.setup
    device = setup.cluster.device
    devices, seconds = setup.parallel.world_size, measured.step_seconds
    own = predicted.model_flops / devices / seconds
    peak, tf32 = _peak_reached(understood, max(own, logged or 0.0))
    yield from [Doubt(tf32, at)] if tf32 else []
    if logged is not None and logged > peak:
        says = f"{logged / TERA:,.0f} TFLOPS by the log is above the peak of {device.name}, {peak / TERA:,.0f}"
        yield Doubt(f"{says}: the device, or what the log counts, is another one", at, impossible=True)
    if 0.5 * own > peak or (own > peak and (logged is None or logged < own / MOST_CONVENTION)):
        says = f"{own / TERA:,.0f} TFLOPS follow from model, batch and time, above the peak of {device.name},"
        remedy = "batch, sequence or number of devices are not what is said"
        yield Doubt(f"{says} {peak / TERA:,.0f}: {remedy}", at, impossible=True)
    if logged is not None and measured.mfu and not _is_close(logged / measured.mfu, peak, PEAK_CLOSE):
        yield Doubt(_wrong_share(logged, measured.mfu, peak, device), at)
    elif logged is not None:
        yield from _about_count(logged, predicted, understood, measured)
    if measured.tokens_per_second:
        yield from _about_tokens(measured.tokens_per_second, understood, measured)


def _wrong_share(logged: float, mfu: float, peak: float, device: DeviceSpec) -> str:
    implied = logged / mfu
    own = f"of {device.name}'s {peak / TERA:,.0f} it is {logged / peak:.1%}"
    if _is_close(implied, 2 * peak, PEAK_CLOSE):
        return f"the log's share of {mfu:.1%} is of the peak with sparsity; {own}"
    return f"the log's share of {mfu:.1%} is of {_peak_in_words(implied)}; {own}"


def _peak_in_words(implied: float) -> str:
    names = [name for name, peaks in _peaks().items() if any(_is_close(implied, peak, PEAK_CLOSE) for peak in peaks)]
    of = f", which is that of {' or '.join(names[:3])}" if names else ""
    return f"{implied / TERA:,.0f} TFLOPS{of}"


def _peaks() -> dict[str, list[float]]:
    """The peaks of every device of conf/device, by its name, but for those of fp32."""
    found = {}
    for name in options("device"):
        path = path_of("device", name)
        assert path is not None  # the name is an option
        content = yaml_content(file_text(path), path, "device")
        if isinstance(content, dict) and content.get("kind") == "gpu":
            stated = content["peak_flops_per_second"].items()
            found[str(content["name"])] = [float(peak) for dtype, peak in stated if dtype != "fp32"]
    return found


def _about_count(
    logged: float, predicted: Estimate, understood: Understood, measured: MeasuredSteps
) -> Iterator[Doubt]:
    """The rate that the log prints against the one that follows from its own time, model and batch."""
    assert understood.configuration is not None
    setup = understood.configuration.setup
    own = predicted.model_flops / setup.parallel.world_size / measured.step_seconds
    ratio = logged / own
    if 1 / MOST_CONVENTION <= ratio <= MOST_CONVENTION:
        return
    factors = {
        "accumulated micro-batches are left out": 1 / setup.num_micro_batches,
        "accumulated micro-batches are counted twice": float(setup.num_micro_batches),
        "only the parameters of one rank are counted": 1 / _ranks_of_a_replica(understood),
        "the rate is of all devices together": float(setup.parallel.world_size),
    }
    because = [words for words, factor in factors.items() if factor != 1 and _is_close(ratio, factor, 0.25)]
    why = f": {because[0]}" if because else ": model, batch or time is not what is said"
    says = f"the log prints {logged / TERA:,.1f} TFLOPS, and model, batch and time come to {own / TERA:,.1f}{why}"
    yield Doubt(says, measured.steady[0].at)


def _about_tokens(rate: float, understood: Understood, measured: MeasuredSteps) -> Iterator[Doubt]:
    assert understood.configuration is not None
    setup = understood.configuration.setup
    ratio = rate * measured.step_seconds / (setup.batch.global_batch_size * setup.model.seq_length)
    if _is_close(ratio, 1.0, CLOSE):
        return
    causes: Mapping[str, float] = {
        "the rate leaves accumulation out": 1 / setup.num_micro_batches,
        "the rate is of one device": 1 / setup.parallel.world_size,
        "the rate is of one replica": 1 / setup.data_parallel_size,
    }
    because = [words for words, factor in causes.items() if factor != 1 and _is_close(ratio, factor, CLOSE)]
    why = because[0] if because else "saving, padding or another batch may be in one of them"
    says = f"{rate:,.0f} tokens/s over {measured.step_seconds:.3g} s make {ratio:.2f} of the step's tokens: {why}"
    yield Doubt(says, measured.steady[0].at)


def _about_memory(understood: Understood, measured: MeasuredSteps) -> Iterator[Doubt]:
    configuration, predicted = understood.configuration, understood.predicted
    if configuration is None or predicted is None or not configuration.models_memory:
        return
    capacity, reserved = predicted.memory_capacity_bytes, measured.reserved_bytes
    if reserved is not None and reserved > 1.02 * capacity:
        says = f"{reserved / GIBIBYTE:,.1f} GiB are reserved, more than the {capacity / GIBIBYTE:,.1f} of the device"
        yield Doubt(f"{says}: the device is another one", None, impossible=True)
    held, expected = measured.allocated_bytes or reserved, predicted.allocated_bytes
    if held is None:
        if MemoryRisk(understood, None).fits(configuration, predicted) < UNLIKELY:
            says = f"it ran, and its plan needs {predicted.peak_memory_bytes / GIBIBYTE:,.1f} GiB of a device's"
            remedy = "more is recomputed, sharded or kept on the host than was understood"
            yield Doubt(f"{says} {capacity / GIBIBYTE:,.1f}: {remedy}")
        return
    prediction = RowPrediction(configuration, predicted)
    if otherwise := recompute_doubt(prediction, held, is_allocated=measured.allocated_bytes is not None):
        yield Doubt(f"{otherwise}: it recomputes otherwise than was understood, or the figure is of another time")
    elif held < LITTLE_MEMORY * expected:
        says = f"{held / GIBIBYTE:,.1f} GiB are held where the plan needs {expected / GIBIBYTE:,.1f}"
        remedy = "more is recomputed, sharded or kept on the host than was understood, or it is an early figure"
        yield Doubt(f"{says}: {remedy}")


def _peak_reached(understood: Understood, rate: float) -> tuple[float, str]:
    """The peak of the run's products; of fp32, where no more than TF32 explains the rate, TF32's, and a sentence.

    TF32 cuts the operands of fp32 products, and has half the peak of bf16. Source: NVIDIA's data sheets of A100 (156
    of 312), H100 (495 of 989) and B200 (1,100 of 2,250).
    """
    assert understood.configuration is not None
    setup, peak = understood.configuration.setup, _peak_of(understood)
    device = setup.cluster.device
    if setup.precision.dtype != "fp32" or device.maker != "nvidia" or "bf16" not in device.peak_flops_per_second:
        return peak, ""
    narrow = device.peak_flops_per_second["bf16"] / 2
    if not peak < rate <= narrow:
        return peak, ""
    says = f"{rate / TERA:,.0f} TFLOPS are above the fp32 peak of {device.name}, {peak / TERA:,.0f}"
    return narrow, f"{says}: its products are in TF32, whose peak is {narrow / TERA:,.0f}, and are priced in fp32"


def _peak_of(understood: Understood) -> float:
    assert understood.configuration is not None
    setup = understood.configuration.setup
    recipe = setup.precision.matmul_recipe
    peaks = setup.cluster.device.peak_flops_per_second
    return peaks[setup.precision.dtype if recipe is None else narrow_dtype(recipe)]


def _ranks_of_a_replica(understood: Understood) -> int:
    assert understood.configuration is not None
    parallel = understood.configuration.setup.parallel
    return parallel.tensor_parallel_size * parallel.pipeline_parallel_size


def _is_close(value: float, other: float, share: float) -> bool:
    return abs(value / other - 1) <= share
