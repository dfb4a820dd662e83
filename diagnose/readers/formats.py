"""Lines about steps, of every trainer: how they are told from others, and what they call their figures.

Source of each form: the printing code of Megatron-LM, Megatron-DeepSpeed, gpt-neox, Megatron-Bridge, NeMo, NeMo
Automodel, Primus, torchtitan, nanotron, DeepSpeed, DeepSpeed-Chat, transformers (with tqdm), nanoGPT, its speed runs,
nanochat, llm.c, MaxText, LitGPT, torchtune, llm-foundry, OLMo, fms-fsdp, InternLM, mmengine and xtuner, fairseq,
PaddleNLP, MindFormers and verl.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class StepFormat(NamedTuple):
    """How a program's lines about steps are told from others.

    Attributes:
        program: as in `UserRun.program`.
        opening: letters that each such line has; looked for before anything else, as it is quick.
        number: finds the number of the step as its first group, or as its groups `step`, `epoch` and `of`; lines of a
            pattern without groups are counted.
        first: the number of the first step.
        averages: true where a line's time is the mean of all steps since the one before.
        pair: finds names and figures; None takes `name: figure`.
        behind: what lines that follow, and say more of the step, have in them; None where there are none.
        own: quantities under names that mean something else elsewhere.
    """

    program: str
    opening: str
    number: re.Pattern[str]
    first: int = 1
    averages: bool = False
    pair: re.Pattern[str] | None = None
    behind: re.Pattern[str] | None = None
    own: Mapping[str, tuple[str, float]] = MappingProxyType({})


FIGURE = r"([-+]?[.\d][\d.,_]*(?:[eE][-+]?\d+)?)(?: ?(ms|s|[KMGBT]|%)(?![A-Za-z]))?"
PAIR = re.compile(rf"([A-Za-z_][\w/ ().-]*?) ?[:=] *{FIGURE}")
SPACED_PAIR = re.compile(rf"\b([a-z_]+):? {FIGURE}")
EQUAL_PAIR = re.compile(rf"([A-Za-z_][\w/]*(?: ?\([\w/]+\))?)={FIGURE}")
COLON_PAIR = re.compile(rf"([A-Za-z_][\w/]*(?: ?\([\w/]+\))?): *{FIGURE}")
PLAIN_PAIR = re.compile(rf"\b([a-z_]+) {FIGURE}")
UNIT_PAIR = re.compile(rf"(?=[\d.,]+(?:% | )(ms|tok/s|bf16 MFU)\b){FIGURE}")
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
    StepFormat("nanochat", "| dt: ", re.compile(r"\bstep +(\d+)(?:/\d+)? *(?:\([\d.]+%\) )?\|"), first=0),
    StepFormat("maxtext", "completed step: ", re.compile(r"\bcompleted step: (\d+), seconds: "), first=0),
    StepFormat("litgpt", "iter ", re.compile(r"\biter (\d+)(?: step \d+)?(?: \||:).*\b(?:iter )?time: [\d.]+ ?ms")),
    StepFormat("torchtune", "Step ", re.compile(r"\bStep (\d+) \| ")),
    StepFormat("llm-foundry", "[batch=", re.compile(r"\[batch=(\d+)/\d+\]"), behind=re.compile("rain ")),
    StepFormat(
        "olmo", "[step=", re.compile(r"\[step=(\d+)/\d+"), pair=EQUAL_PAIR, behind=re.compile(r"^\s+[\w/ ()]+=")
    ),
    StepFormat(
        "fms-fsdp", "step: ", re.compile(r"^\s*step: (\d+)\s*$"), averages=True, behind=re.compile(r"^\s*[\w ]+: [\d.]")
    ),
    StepFormat("internlm", "tgs (tokens/gpu/second)", re.compile(r"\bstep=(\d+)"), first=0, pair=EQUAL_PAIR),
    StepFormat(
        "xtuner",
        "data_time: ",
        re.compile(r"\bEpoch (?P<epoch>\d+) Step (?P<step>\d+)/(?P<of>\d+)"),
        pair=COLON_PAIR,
        own=MappingProxyType({"time": ("seconds", 1.0), "reserved_memory": ("memory", 2.0**30)}),
    ),
    StepFormat(
        "xtuner",
        "data_time: ",
        re.compile(r"(?:\(train\)|Epoch)\s*(?:\[(?P<epoch>\d+)\])?\s*\[ *(?P<step>\d+)/ *(?P<of>\d+)\]"),
        averages=True,
        pair=COLON_PAIR,
        own=MappingProxyType({"time": ("seconds", 1.0), "memory": ("memory", 2.0**20)}),
    ),
    StepFormat(
        "fairseq",
        "train_inner | ",
        re.compile(r"\bnum_updates=(\d+)"),
        averages=True,
        pair=EQUAL_PAIR,
        own=MappingProxyType({"wps": ("tokens", 1.0), "ups": ("batches", 1.0)}),
    ),
    StepFormat(
        "nemo-automodel",
        " | epoch ",
        re.compile(r"\bstep (\d+) \| epoch \d"),
        first=0,
        pair=PLAIN_PAIR,
        own=MappingProxyType({"tps": ("tokens", 1.0)}),
    ),
    StepFormat("nanogpt", "train_time:", re.compile(r"\bstep:(\d+)/\d+"), pair=COLON_PAIR),
    StepFormat("llm.c", " tok/s", re.compile(r"\bstep +(\d+)/\d+ \| (?:train )?loss"), pair=UNIT_PAIR),
    StepFormat("deepspeed-chat", "Latency: ", re.compile(r"Model Parameters: [\d.]+ B, Latency")),
    StepFormat("verl", "step:", re.compile(r"\bstep:(\d+) - "), pair=COLON_PAIR),
    StepFormat("paddlenlp", "interval_runtime", re.compile(r"\bglobal_step: (\d+)"), averages=True, pair=COLON_PAIR),
    StepFormat(
        "mindformers",
        "per_step_time",
        re.compile(r"\bstep: ?\[ *(?P<step>\d+)/"),
        averages=True,
        pair=COLON_PAIR,
        own=MappingProxyType({"train_throughput_per_npu": ("tflops", 1e-12)}),
    ),
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
    "current step time": ("seconds", 1.0),
    "timing_s/step": ("seconds", 1.0),
    "per_step_time": ("seconds", 1e-3),
    "latency": ("seconds", 1.0),
    "ms": ("seconds", 1.0),
    "train_time": ("elapsed", 1e-3),
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
    "approx flops per gpu": ("tflops", 1.0),
    "effective tera flops per gpu": ("tflops", 1.0),
    "mfu": ("mfu", 1.0),
    "bf16 mfu": ("mfu", 1.0),
    "throughput/device/mfu": ("mfu", 0.01),
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
    "tokens per gpu (tokens/s/gpu)": ("tokens_per_device", 1.0),
    "tgs (tokens/gpu/second)": ("tokens_per_device", 1.0),
    "tgs": ("tokens_per_device", 1.0),
    "current token per gpu per sec": ("tokens_per_device", 1.0),
    "throughput/device/tokens_per_second": ("tokens_per_device", 1.0),
    "throughput/device/tps": ("tokens_per_device", 1.0),
    "interval_tokens_per_second_per_device": ("tokens_per_device", 1.0),
    "tok/s": ("tokens", 1.0),
    "tokens_per_sec": ("tokens", 1.0),
    "tok/sec": ("tokens", 1.0),
    "train throughput/tokens_per_sec": ("tokens", 1.0),
    "samples per second": ("samples", 1.0),
    "samples/sec": ("samples", 1.0),
    "currsamplespersec": ("samples", 1.0),
    "train throughput/batches_per_sec": ("batches", 1.0),
    "throughput/device/batches_per_second": ("batches", 1.0),
    "throughput/device/bps": ("batches", 1.0),
    "interval_steps_per_second": ("batches", 1.0),
    "memory": ("memory", 2.0**30),
    "peak_memory_reserved": ("memory", 2.0**30),
    "maxmemallocated": ("memory", 2.0**30),
    "train memory/peak_reserved_mem": ("memory", 1e9),
    "reserved memory": ("memory", 1.0),
    "perf/max_memory_reserved_gb": ("memory", 2.0**30),
    "hip mem usage/free/total/usage_ratio": ("memory", 2.0**30),
    "loss": ("loss", 1.0),
    "lm loss": ("loss", 1.0),
    "lm_loss": ("loss", 1.0),
    "reduced_train_loss": ("loss", 1.0),
    "loss train": ("loss", 1.0),
    "train loss/train/total": ("loss", 1.0),
    "train/crossentropyloss": ("loss", 1.0),
    "train/ce loss": ("loss", 1.0),
    "batch size": ("batch", 1.0),
    "global batch size": ("batch", 1.0),
    "global batch size:": ("batch", 1.0),
}
"""What programs call a quantity, in lower case, and its unit."""
