"""The constants that are fitted, what was known of each before, and where the value is written.

What belongs to a chip is the product of a value that all GPUs share and of the chip's own factor, which rests at 1: a
chip that no table shows has the common value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import yaml

from calibrate.refit_cluster import Constants
from calibrate.robust_fit import Constant, Values
from conf.compose.load import cluster_named
from conf.folders import conf_dir, options
from costs.setting import Scale, Setting
from costs.trainers import IMPLEMENTATIONS, Implementation
from train_core.trial.atomic import write_atomically

GPUS = "gpus"
OTHERS = "other-makers"
BLACKWELL = "blackwell"
NETWORK = "network"
SCALE = "scale"
CHIP_FIELDS = ("matmul", "attention", "memory", "kernel_seconds")


@dataclass(frozen=True)
class Fitted:
    """One constant that is fitted.

    Attributes:
        group: `scale`, `gpus`, `other-makers`, `blackwell`, `network`, the name of a file of conf/efficiency, or of a
            trainer.
        field: its name there; for `network` a kind of NETWORKS.
        prior: its value as it is known without the tables.
        spread: of its logarithm around that.
        reason: why the prior is what it is.
    """

    group: str
    field: str
    prior: float
    spread: float
    lowest: float
    highest: float
    reason: str

    @property
    def name(self) -> str:
        return f"{self.group}.{self.field}"

    @property
    def constant(self) -> Constant:
        return Constant(self.name, self.lowest, self.highest, self.spread)


GLOBAL = (
    Fitted(SCALE, "shown", 0.65, 0.35, 0.05, 1.0, "a product falls from 80 to 47 % MFU beside a gather on an H100"),
    Fitted(SCALE, "latency", 1.6, 0.4, 0.3, 10.0, "ranks of a ring wait for each other at every step"),
    Fitted(SCALE, "slowest", 0.02, 0.5, 0.001, 0.1, "chips of one type differ by a few percent in speed"),
    Fitted(SCALE, "taper", 0.1, 0.5, 0.005, 0.5, "rings over more switches meet other traffic"),
    Fitted(SCALE, "start", 2.3e-5, 0.2, 1e-6, 1e-4, "22 to 26 microseconds on 8 B200 (SimuMax)"),
    Fitted(GPUS, "matmul", 0.8, 0.07, 0.3, 0.95, "the fastest product of an H100; shapes are accounted for apart"),
    Fitted(GPUS, "attention", 0.5, 0.25, 0.1, 0.9, "flash attention, forward and backward: 40 to 65 %"),
    Fitted(GPUS, "memory", 0.75, 0.15, 0.3, 0.95, "copies reach 80 to 90 %, norms and reductions less"),
    Fitted(GPUS, "kernel_seconds", 5e-6, 0.3, 2e-6, 1e-5, "launch, ramp-up and tail of a kernel: 3 to 8 microseconds"),
    Fitted(OTHERS, "matmul", 0.9, 0.3, 0.4, 1.2, "MI250X and Max 1550: libraries reach their best in fewer shapes"),
    Fitted(BLACKWELL, "matmul", 1.0, 0.15, 0.4, 1.2, "the power of a step keeps up its fastest product, or does not"),
    Fitted(NETWORK, "infiniband", 0.8, 0.2, 0.1, 1.0, "what NCCL's rings reach of the line rate"),
    Fitted(NETWORK, "ethernet", 0.8, 0.2, 0.1, 1.0, "the same over RoCE"),
    Fitted(NETWORK, "slingshot", 0.8, 0.2, 0.1, 1.0, "the same"),
    Fitted(NETWORK, "omni-path", 0.6, 0.2, 0.1, 1.0, "messages that the host drives reach less"),
)
CHIP_SPREADS = {"matmul": 0.05, "attention": 0.2, "memory": 0.1}
BLACKWELL_CHIPS = ("b200", "b300", "gb200", "gb300")
LARGEST_PRODUCTS = {
    "a100": 0.869,
    "b200": 0.776,
    "b300": 0.786,
    "gb200": 0.729,
    "gb300": 0.786,
    "h100": 0.803,
    "max1550": 0.49,
    "mi250x": 0.767,
    "mi300x": 0.511,
    "mi325x": 0.6,
    "mi355x": 0.626,
}
"""Share of the peak that the fastest bf16 product of all reaches.

Source: Bekman, Machine Learning Engineering, compute/accelerator, maximum achievable matmul FLOPS, as of August 2026,
against the peaks of conf/device; mi250x: its table of 2024, which let products find their operands in the cache, and in
which mi300x has 0.598; gb300: the same chip in B300, as nobody measured it; max1550: users of Aurora
(conf/efficiency/max1550.yaml).
"""
COMMON_PRODUCT = 0.8
COMMON_MEMORY = 0.85
COMMON_ATTENTION = 0.5
MEMORY_SHARES = {"max1550": 0.61}
"""Share of the bandwidth that copies reach, where it is far from the COMMON_MEMORY of other chips. Source: ALCF, Aurora
machine overview, triad on one stack: 1 of 1.638 TB/s."""
ATTENTION_SHARES = {
    **dict.fromkeys(BLACKWELL_CHIPS, 0.42),
    "max1550": 0.27,
    "mi300x": 0.34,
    "mi325x": 0.34,
    "mi355x": 0.385,
}
ATTENTION_SPREAD = 0.1
"""Share of the peak that causal flash attention reaches, heads of 128, where it is not the COMMON_ATTENTION of other
chips.

Source: Bekman, Machine Learning Engineering, insights/when-to-upgrade-gpus, as of August 2026: forward and backward,
FlashAttention 4 on B200 is 1.88 to 1.95 times as fast as FlashAttention 3 on H200, whose peak is a 2.275th, so that it
reaches 0.84 of an H200's share; the others have B200's tensor cores. AMD's: ROCm/aiter, op_tests/cpp/mha/README.md of
January 2026, forward and backward at 4,096 and 8,192 tokens: 427 and 461 TFLOPS on MI300X, 802 to 1,127 on MI355X,
whose backward adds up in fp32 or in bf16; mi325x is the chip of MI300X. max1550: 113 TFLOPS of a tile forward
(intel/intel-xpu-backend-for-triton, issues 773, 1758 and 5771); nobody printed its backward.
"""
FAMILIES = {
    **dict.fromkeys(("mi250x", "max1550"), OTHERS),
    **dict.fromkeys(BLACKWELL_CHIPS, BLACKWELL),
}
"""Chips that have a factor in common: those whose libraries reach their best in fewer shapes, and those whose power
falls short of their tensor cores. Chips since MI300X are in neither: steps that AMD published (Primus, MLPerf 5.1;
benchmarks/published_3.csv) reach the share of the fastest product that NVIDIA's chips reach."""
NETWORKS = {  # the kind of network that the name of a cluster's widest link means
    "infiniband": "infiniband",
    "roce": "ethernet",
    "rdma": "ethernet",
    "slingshot": "slingshot",
    "omni-path": "omni-path",
}
TRAINERS = (
    Fitted("megatron-lm", "launch_seconds", 3.5e-5, 0.3, 5e-6, 1e-4, "GPT-2 forward: 30 µs, and autograd"),
    Fitted("megatron-lm", "collective_call_seconds", 6e-5, 0.4, 1e-5, 3e-4, "a call through torch.distributed"),
    Fitted("megatron-lm", "micro_batch_seconds", 1e-3, 0.5, 1e-4, 1e-2, "assumed: some dozens of calls in Python"),
    Fitted("megatron-lm", "whole_gradient_bytes", 16.0, 0.5, 1.0, 80.0, "zero 4, norm 4, scaled 8 of fp32 gradients"),
    Fitted("megatron-core", "launch_seconds", 2e-5, 0.4, 3e-6, 1e-4, "the same on hosts of today"),
    Fitted("fsdp", "attention_rate", 0.7, 0.25, 0.3, 1.0, "the flash attention of 2023 in Triton"),
    Fitted("fsdp", "attention_since_hopper", 0.5, 0.25, 0.2, 1.0, "35 % on an H100, its successor 75 %"),
    Fitted("fsdp", "memory_traffic", 1.8, 0.25, 1.0, 4.0, "eager layers write every intermediate result"),
    Fitted("torchtitan", "memory_traffic", 1.4, 0.2, 0.8, 2.5, "compiled layers"),
    Fitted("megatron-lm", "memory_traffic", 1.0, 0.2, 0.6, 3.0, "fused by hand: bias, activation, dropout"),
    Fitted("megatron-deepspeed", "memory_traffic", 1.0, 0.2, 0.6, 3.0, "the same kernels"),
    Fitted("megatron-core", "memory_traffic", 1.0, 0.2, 0.6, 3.0, "the same kernels, by Transformer Engine"),
)
TRAINER_FIELDS = tuple(dict.fromkeys(each.field for each in TRAINERS))
MADE_FROM = {
    "megatron-deepspeed": ("megatron-lm",),
    "megatron-core": ("megatron-lm", "fsdp"),  # some of its tables were run with the attention kernel of the latter
    "torchtitan": ("fsdp",),
    "deepspeed": ("fsdp",),
}


@cache
def fitted_constants() -> tuple[Fitted, ...]:
    chips = tuple(_of_chip(chip, field) for chip in options("efficiency") for field in CHIP_SPREADS)
    return (*GLOBAL, *chips, *TRAINERS)


def _of_chip(chip: str, field: str) -> Fitted:
    share, spread, reason = 1.0, CHIP_SPREADS[field], "chips of other makers and years reach about the same share"
    if field == "matmul" and chip in LARGEST_PRODUCTS:
        share, reason = LARGEST_PRODUCTS[chip] / COMMON_PRODUCT, "as the fastest product that was found on it"
    elif field == "attention" and chip in ATTENTION_SHARES:
        share, spread, reason = ATTENTION_SHARES[chip] / COMMON_ATTENTION, ATTENTION_SPREAD, "as somebody measured"
    elif field == "memory" and chip in MEMORY_SHARES:
        share, reason = MEMORY_SHARES[chip] / COMMON_MEMORY, "as copies that others measured"
    return Fitted(chip, field, share, spread, 0.4, 2.5, reason)


def prior_values() -> dict[str, float]:
    return {each.name: each.prior for each in fitted_constants()}


def constants_with(values: Values, setting: Setting) -> Constants:
    """The constants of a setting where the fitted ones have these values."""
    cluster, kind = setting.cluster, setting.implementation
    chip = chip_of(cluster.name)
    of_chip = {} if chip is None else chip_values(values, chip)
    efficiency = {field: value for field, value in of_chip.items() if field not in own_constants(cluster.name)}
    kind_of_network = NETWORKS.get(cluster.links[-1].name)
    efficiency |= {} if kind_of_network is None else {"link": values[f"{NETWORK}.{kind_of_network}"]}
    scale = {field: values[f"{SCALE}.{field}"] for field in Scale.model_fields if f"{SCALE}.{field}" in values}
    return Constants(
        cluster.efficiency.model_copy(update=efficiency),
        kind.model_copy(update=_of_trainer(values, kind)),
        setting.scale.model_copy(update=scale),
    )


def _of_trainer(values: Values, kind: Implementation) -> dict[str, float]:
    """The fitted constants of a trainer: its own, and those that it has from the trainers that it is made from."""
    found: dict[str, float] = {}
    for owner in (kind.name, *MADE_FROM.get(kind.name, ())):
        for field in TRAINER_FIELDS:
            # A variant, such as one that does not compile, shares a constant with the trainer whose value it has.
            inherits = getattr(IMPLEMENTATIONS[owner], field) == getattr(kind, field)
            if inherits and field not in found and f"{owner}.{field}" in values:
                found[field] = values[f"{owner}.{field}"]
    return found


def chip_values(values: Values, chip: str) -> dict[str, float]:
    """The constants of a chip: what all GPUs share, times what its family has in common, times its own factor."""
    groups = (GPUS, FAMILIES.get(chip), chip)
    return {
        field: min(1.0, prod(values.get(f"{group}.{field}", 1.0) for group in groups))
        for field in CHIP_FIELDS
        if f"{GPUS}.{field}" in values
    }


@cache
def chip_of(cluster: str) -> str | None:
    """The file of conf/efficiency that a cluster takes its constants from; None where it has all of its own."""
    for default in _content(cluster).get("defaults", ()):
        if isinstance(default, dict) and "/efficiency@efficiency" in default:
            return str(default["/efficiency@efficiency"])
    return None


@cache
def own_constants(cluster: str) -> frozenset[str]:
    """Constants that the cluster's file states itself."""
    return frozenset(_content(cluster).get("efficiency") or ())


@cache
def _content(cluster: str) -> dict[str, Any]:
    content = yaml.safe_load((conf_dir() / "cluster" / f"{cluster}.yaml").read_text())
    assert isinstance(content, dict)
    return content


COSTS = conf_dir().parent / "costs"


@dataclass(frozen=True)
class WrittenPlace:
    """A number in a text file of the project.

    Attributes:
        part: the name of the part in which it stands, of several in the file; empty where there is one.
    """

    path: Path
    field: str
    value: float
    part: str = ""


def write_constants(values: Values) -> list[WrittenPlace]:
    """Write every constant to its place, and return the places. Nothing is written if one of them is not there."""
    places = list(places_of(values))
    texts: dict[Path, str] = {}
    for place in places:
        text = texts.get(place.path) or place.path.read_text()
        texts[place.path] = with_number(text, place.field, place.value, place.part)
    for path, text in texts.items():
        write_atomically(path, text)
    return places


def places_of(values: Values) -> Iterator[WrittenPlace]:
    """The place of each value."""
    for chip in options("efficiency"):
        path = conf_dir() / "efficiency" / f"{chip}.yaml"
        yield from (WrittenPlace(path, field, value) for field, value in chip_values(values, chip).items())
    for cluster in options("cluster"):
        kind = NETWORKS.get(cluster_named(cluster).links[-1].name)
        if kind is not None:
            yield WrittenPlace(conf_dir() / "cluster" / f"{cluster}.yaml", "link", values[f"{NETWORK}.{kind}"])
    chips = options("efficiency")
    for each in fitted_constants():
        if each.group == SCALE:
            yield WrittenPlace(COSTS / "setting.py", each.field, values[each.name])
        elif each.group not in (GPUS, OTHERS, BLACKWELL, NETWORK, *chips):
            yield WrittenPlace(COSTS / "trainers.yaml", each.field, values[each.name], each.group)


def with_number(text: str, field: str, value: float, part: str = "") -> str:
    """The text with the one number replaced that stands behind `field:`, `field=` or `"field":`.

    Args:
        part: of a YAML file, the only one that is looked through, up to a blank line.
    """
    start = text.index(f"\n{part}:\n") if part else 0
    end = text.find("\n\n", start) if part else -1
    end = len(text) if end < 0 else end
    stated = re.compile(rf'(?<![\w.])("?{re.escape(field)}"?(?::|=)\s?)-?\d[\d._]*(?:e-?\d+)?')
    declaration, times = stated.subn(lambda match: match.group(1) + number_text(value), text[start:end])
    assert times == 1, f"{field} is stated {times} times, and has to be stated once"
    return text[:start] + declaration + text[end:]


def number_text(value: float) -> str:
    """Three digits, with a point, as YAML and Python read a float: `0.72`, `5.0e-6`."""
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    mantissa += "" if "." in mantissa else ".0"
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
