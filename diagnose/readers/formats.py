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
        "torchtitan",
        "step: ",
        re.compile(r"(?<!validate )(?<!completed )\bstep: *(\d+(?:,\d{3})*) +loss:(?=.*\b(?:memory|tps|wps|tgs|mfu):)"),
        averages=True,
    ),
    StepFormat(
        "nanotron",
        "iteration: ",
        re.compile(r"\biteration: *(\d+) / \d+ \|"),
        averages=True,
        own=MappingProxyType({"global_batch_size": ("tokens_of_step", 1.0)}),
    ),
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
    StepFormat("llm.c", " tok/s", re.compile(r"\bstep +(\d+)/\d+ \| (?:train )?loss .*\d ms [|(]"), pair=UNIT_PAIR),
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
CALLED = """
seconds 0.001 = elapsed time per iteration (ms); elapsed_time_per_iteration_ms; time_per_iteration_ms; per_step_time
seconds 0.001 = iter time; time; dt
seconds 1 = elapsed time per iteration (s); train_step_timing in s; iter time (s); seconds; current step time
seconds 1 = timing_s/step; latency; ms
elapsed 0.001 = train_time
tflops 1 = throughput per gpu (tflop/s/gpu); tflops; tflops_per_gpu; tflop/s; tflop/s/device; model_tflops_per_gpu
tflops 1 = approx flops per gpu; effective tera flops per gpu
tflops 1e-12 = train throughput/device/flops_per_sec
mfu 1 = mfu; bf16 mfu; train throughput/device/mfu
mfu 0.01 = throughput/device/mfu
tokens_per_device 1 = tps; wps; tokens_per_sec_per_gpu; tokens_per_second_per_gpu; tokens/s/device
tokens_per_device 1 = average token/sec/gpu; tokens per gpu per second (tgs); tokens_per_gpu_per_second_tgs
tokens_per_device 1 = token/sec/gpu; train throughput/device/tokens_per_sec; tokens per gpu (tokens/s/gpu)
tokens_per_device 1 = tgs (tokens/gpu/second); tgs; current token per gpu per sec
tokens_per_device 1 = throughput/device/tokens_per_second; throughput/device/tps
tokens_per_device 1 = interval_tokens_per_second_per_device
tokens 1 = tok/s; tokens_per_sec; tok/sec; train throughput/tokens_per_sec
samples 1 = samples per second; train throughput/samples_per_sec; samples/sec; currsamplespersec
allocated 1e+09 = train memory/peak_allocated_mem
batches 1 = train throughput/batches_per_sec; throughput/device/batches_per_second; throughput/device/bps
batches 1 = interval_steps_per_second
memory gib = memory; peak_memory_reserved; perf/max_memory_reserved_gb; hip mem usage/free/total/usage_ratio
allocated gib = maxmemallocated; peak_memory_alloc
memory 1 = cuda_max_memory_reserved; reserved memory
allocated 1 = cuda_memory_allocated
memory 1e+09 = train memory/peak_reserved_mem
loss 1 = loss; lm loss; lm_loss; reduced_train_loss; loss train; train loss/train/total; train/crossentropyloss
loss 1 = train/ce loss
batch 1 = batch size; global batch size; global_batch_size; global batch size:
consumed 1 = consumed_samples
"""
ROWS = (row.split(" = ") for row in CALLED.strip().splitlines())
QUANTITIES: dict[str, tuple[str, float]] = {
    name: (quantity, 2.0**30 if unit == "gib" else float(unit))
    for (quantity, unit), names in ((head.split(), names) for head, names in ROWS)
    for name in names.split("; ")
}
"""What programs call a quantity, in lower case, and its unit."""
