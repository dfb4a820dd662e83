"""Lines about steps, of every trainer: the number, the time, the rates and the memory that one line tells.

Source of each form: the printing code of Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge, NeMo, torchtitan, nanotron,
DeepSpeed, transformers (with tqdm), nanoGPT, nanochat, MaxText, LitGPT, torchtune and llm-foundry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from launcher.command_trainer.printed_numbers import GROUPED, UnknownNotation, number_at


class StepFormat(NamedTuple):
    """How a program's lines about steps are told from others.

    Attributes:
        program: as in `UserRun.program`.
        opening: letters that each such line has; looked for before anything else, as it is quick.
        number: finds the number of the step as its first group.
        first: the number of the first step.
        averages: true where a line's time is the mean of all steps since the one before.
        pair: finds names and figures; None takes `name: figure`.
    """

    program: str
    opening: str
    number: re.Pattern[str]
    first: int = 1
    averages: bool = False
    pair: re.Pattern[str] | None = None


FIGURE = r"([-+]?[.\d][\d.,_]*(?:[eE][-+]?\d+)?)(?: ?(ms|s|[KMGBT]|%)(?![A-Za-z]))?"
PAIR = re.compile(rf"([A-Za-z_][\w/ ().-]*?) ?[:=] *{FIGURE}")
SPACED_PAIR = re.compile(rf"\b([a-z_]+):? {FIGURE}")
SHARE = re.compile(r"[GM]i?B\(([\d.]+)%\)")
FORMATS = (
    StepFormat("nemo", "teration ", re.compile(r"\bTraining epoch \d+, iteration (\d+)/"), first=0),
    StepFormat("nemo", "step_timing", re.compile(r"\bglobal_step=(\d+)"), first=0),
    StepFormat("megatron", "iteration", re.compile(r"\biteration[ =] *(\d+)/ *\d+ *\|"), averages=True),
    StepFormat(
        "torchtitan", "step: ", re.compile(r"(?<!validate )(?<!completed )\bstep: *(\d[\d,]*) +loss:"), averages=True
    ),
    StepFormat("nanotron", "iteration: ", re.compile(r"\biteration: *(\d+) / \d+ \|"), averages=True),
    StepFormat("nanogpt", "iter ", re.compile(r"\biter (\d+): loss [\d.]+, time [\d.,]+ms"), first=0, pair=SPACED_PAIR),
    StepFormat("nanochat", "| dt: ", re.compile(r"\bstep (\d+)(?:/\d+)? (?:\([\d.]+%\) )?\|"), first=0),
    StepFormat("maxtext", "completed step: ", re.compile(r"\bcompleted step: (\d+), seconds: "), first=0),
    StepFormat("litgpt", "iter ", re.compile(r"\biter (\d+)(?: step \d+)?(?: \||:).*\b(?:iter )?time: [\d.]+ ?ms")),
    StepFormat("torchtune", "Step ", re.compile(r"\bStep (\d+) \| ")),
    StepFormat("llm-foundry", "[batch=", re.compile(r"\[batch=(\d+)/\d+\]")),
    StepFormat("deepspeed", "iter time (s)", re.compile(r"\bsteps: (\d+) loss: ")),
    StepFormat("deepspeed", "global_step=", re.compile(r"\bglobal_step=(\d+), .*SamplesPerSec")),
)
QUANTITIES: dict[str, tuple[str, float]] = {
    "elapsed time per iteration (ms)": ("seconds", 1e-3),
    "elapsed time per iteration (s)": ("seconds", 1.0),
    "elapsed_time_per_iteration_ms": ("seconds", 1e-3),
    "time_per_iteration_ms": ("seconds", 1e-3),
    "train_step_timing in s": ("seconds", 1.0),
    "iter time (s)": ("seconds", 1.0),
    "seconds": ("seconds", 1.0),
    "iter time": ("seconds", 1e-3),
    "time": ("seconds", 1e-3),
    "dt": ("seconds", 1e-3),
    "throughput per gpu (tflop/s/gpu)": ("tflops", 1.0),
    "tflops": ("tflops", 1.0),
    "tflops_per_gpu": ("tflops", 1.0),
    "tflop/s": ("tflops", 1.0),
    "tflop/s/device": ("tflops", 1.0),
    "model_tflops_per_gpu": ("tflops", 1.0),
    "train throughput/device/flops_per_sec": ("tflops", 1e-12),
    "mfu": ("mfu", 1.0),
    "train throughput/device/mfu": ("mfu", 1.0),
    "tps": ("tokens_per_device", 1.0),
    "wps": ("tokens_per_device", 1.0),
    "tokens_per_sec_per_gpu": ("tokens_per_device", 1.0),
    "tokens_per_second_per_gpu": ("tokens_per_device", 1.0),
    "tokens/s/device": ("tokens_per_device", 1.0),
    "average token/sec/gpu": ("tokens_per_device", 1.0),
    "tokens per gpu per second (tgs)": ("tokens_per_device", 1.0),
    "tokens_per_gpu_per_second_tgs": ("tokens_per_device", 1.0),
    "token/sec/gpu": ("tokens_per_device", 1.0),
    "train throughput/device/tokens_per_sec": ("tokens_per_device", 1.0),
    "tokens_per_sec": ("tokens", 1.0),
    "tok/sec": ("tokens", 1.0),
    "train throughput/tokens_per_sec": ("tokens", 1.0),
    "samples per second": ("samples", 1.0),
    "samples/sec": ("samples", 1.0),
    "currsamplespersec": ("samples", 1.0),
    "train throughput/batches_per_sec": ("batches", 1.0),
    "memory": ("memory", 2.0**30),
    "peak_memory_reserved": ("memory", 2.0**30),
    "maxmemallocated": ("memory", 2.0**30),
    "train memory/peak_reserved_mem": ("memory", 1e9),
    "loss": ("loss", 1.0),
    "lm loss": ("loss", 1.0),
    "lm_loss": ("loss", 1.0),
    "reduced_train_loss": ("loss", 1.0),
    "loss train": ("loss", 1.0),
    "train loss/train/total": ("loss", 1.0),
    "global batch size": ("batch", 1.0),
    "global batch size:": ("batch", 1.0),
}
"""What programs call a quantity, in lower case, and its unit."""
AS_READ = {
    "seconds": "step_seconds",
    "tflops": "tflops",
    "memory_share": "tflops",
    "tokens_per_device": "tokens_per_second",
    "tokens": "tokens_per_second",
    "memory": "memory_gib",
}
A100_TFLOPS = 312.0
NUMBER = re.compile(r"\.?\d[\d.,_]*(?:[eE][-+]?\d+)?")
NO_DIGITS = str.maketrans("", "", "0123456789")
MOST_SHAPES = 10_000
OF_THOUSANDS = ("tokens_per_second", "tflops", "memory_gib")
"""Quantities of which nobody prints three decimals behind a comma."""
ANYTHING = (-1e15, 1e15)
UNITS = {"ms": 1e-3, "s": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "%": 1e-2}
PLAUSIBLE = {
    "seconds": (1e-4, 1e6),
    "tflops": (0.0, 1e5),
    "mfu": (0.0, 100.0),
    "memory": (1.0, 1e13),
    "batch": (1, 1e9),
}


class FigureSlot(NamedTuple):
    """Where a line has a figure: the place among its numbers, what it is, and what it is multiplied by."""

    place: int
    quantity: str
    scale: float


class FigureReader:
    """Reads the figures of lines about steps.

    Lines with the same words have their figures in the same places, which are looked for once: a long log of steps is
    read in a third of the time.
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[str, str], tuple[int, tuple[FigureSlot, ...]]] = {}

    def figures(self, line: str, step_format: StepFormat) -> dict[str, float]:
        """The quantities of a line, in seconds, tokens a second, bytes, TFLOPS and shares of 1."""
        shape, numbers = (step_format.program, line.translate(NO_DIGITS)), NUMBER.findall(line)
        known = self._slots.get(shape)
        if known is None or known[0] != len(numbers):
            if len(self._slots) >= MOST_SHAPES:
                self._slots.clear()
            self._slots[shape] = known = (len(numbers), tuple(_slots(line, step_format)))
        found: dict[str, float] = {}
        for place, quantity, scale in known[1]:
            value = read_number(numbers[place], AS_READ.get(quantity, "loss"))
            low, high = PLAUSIBLE.get(quantity, ANYTHING)
            if value is not None and low <= value * scale <= high:
                found.setdefault(quantity, value * scale)
        if found.get("mfu", 0) > 1.5:  # nanochat prints percent without saying so
            found["mfu"] /= 100
        if step_format.program == "nanogpt" and "mfu" in found:  # whatever the device, of an A100's peak
            found["tflops"] = found.pop("mfu") * A100_TFLOPS
        return found


def _slots(line: str, step_format: StepFormat) -> Iterator[FigureSlot]:
    places = {match.start(): place for place, match in enumerate(NUMBER.finditer(line))}
    for match in (step_format.pair or PAIR).finditer(line):
        name, text, unit = match[1].lower(), match[2], match[3]
        known = QUANTITIES.get(name) or QUANTITIES.get(name.rpartition(") ")[2])
        is_signed = text[0] in "-+"
        place = places.get(match.start(2) + is_signed)
        if known is None or place is None:
            continue
        quantity, scale = known
        scale = 1.0 if quantity == "seconds" and unit in ("ms", "s") else scale
        yield FigureSlot(place, quantity, scale * UNITS.get(unit, 1.0) * (-1 if text[0] == "-" else 1))
    share = SHARE.search(line)
    if share is not None and share.start(1) in places:
        yield FigureSlot(places[share.start(1)], "memory_share", 0.01)


def read_number(text: str, quantity: str) -> float | None:
    """A figure as it is printed, with thousands set apart or with a decimal comma; None where it may be two numbers."""
    try:
        return float(text)
    except ValueError:
        text = text.rstrip(".,_")
    if quantity in OF_THOUSANDS and GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    try:
        return number_at(text, (0, len(text)), len(text), quantity, None)
    except UnknownNotation as unknown:
        return unknown.readings[0] if len(unknown.readings) == 1 else None
    except ValueError:
        return None
