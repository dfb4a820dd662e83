"""The trust that a prediction deserves: an interval in which four measurements of five are expected.

How wide it is was learned from published rows by their practice (`practice`), or from runs of one's own. A plan also
says where it lies outside of published rows (`validated.yaml`, beside this file).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import exp
from typing import Annotated

from pydantic import Field

from conf.folders import package_content
from conf.plan.setup import Setup
from conf.types.cluster_spec import FittedRuns
from conf.types.schema import Frozen, NonNegative
from conf.types.trainer_spec import Practice
from conf.units import GIGA
from costs import Estimate, num_parameters
from costs.counts.flops import layer_forward_flops
from sweeps.practice import load_levels, own_level, practice_of, practice_of_own, said_after, said_before

LEAST_ERROR = 0.02
"""A cluster's own runs leave at least this much open. With it, intervals of calibrations that were replayed on five
rows of published tables hold 79 % of the other rows where the five were drawn, and 85 % where they were chosen."""
OVER_MEAN = 1.4
"""Four of five errors are below 1.6 times their mean where these are normal, and below less where a few large ones
raise the mean: of 26 runs of a proxy on disturbed cores, off by 35 % in the mean, 22 lie within 1.4 times that, and 15
within the mean and two percent."""

MARGIN = 1.5
"""What is validated up to a size says something of half as much again: a step beyond 1,024 devices is 1,536."""
NAMES = {  # what is measured of a plan, and how a sentence says it
    "devices": "{} devices",
    "parameters": "{} billion parameters",
    "sequence": "{} tokens a sequence",
    "tensor": "tensor-parallel size {}",
    "pipeline": "{} pipeline stages",
    "context": "context-parallel size {}",
    "micro_batch": "micro-batch size {}",
}


@dataclass(frozen=True)
class Interval:
    """The seconds that a step is expected to take, with 80 % probability.

    Attributes:
        rivals: two predictions of one model on one machine with this trainer are told apart by more than this share.
        outside: on which sides the plan lies outside of what was ever validated, and why, in words.
        in_words: what most runs take, as people say it.
    """

    low_seconds: float
    high_seconds: float
    rivals: float
    outside: tuple[str, ...]
    in_words: str = ""


def interval_of(setup: Setup, implementation: str, estimate: Estimate, practice: Practice | None = None) -> Interval:
    return interval_around(estimate.step_seconds, setup, implementation, practice)


def interval_around(seconds: float, setup: Setup, implementation: str, practice: Practice | None = None) -> Interval:
    """The interval around predicted seconds of a step.

    Args:
        practice: how well the runs are tuned; None takes what the setup says, see `practice_of`.
    """
    kind, known, width = practice or practice_of(setup, implementation), load_validated(), width_of(setup)
    level, own = load_levels()[kind], own_level(setup, implementation)
    low, high, rivals, words = level.low * width, level.high * width, known.rivals * width, said_before(kind, width)
    if (runs := _own_runs(setup, implementation)) is not None:
        high = half_width(runs.left_out_error)
        low, rivals, words = -high, min(known.rivals, high), said_after(runs.num_runs, high)
    elif own is not None:
        high = load_levels()[practice or practice_of_own(setup)].half_after(own.num_runs)
        low, words = -high, said_after(own.num_runs, high)
    return Interval(seconds * exp(low), seconds * exp(high), rivals, outside_of(setup, implementation), words)


def half_width(left_out_error: float) -> float:
    """Return the share by which an interval reaches to both sides near runs that were predicted with this error."""
    return max(LEAST_ERROR + left_out_error, OVER_MEAN * left_out_error)


def _own_runs(setup: Setup, implementation: str) -> FittedRuns | None:
    """The runs of this trainer that the cluster's constants were fitted to, where the plan is of about their size."""
    runs = setup.cluster.efficiency.runs
    if runs is None or setup.mixed is not None or implementation not in runs.trainers.split(", "):
        return None
    return runs if setup.parallel.world_size <= MARGIN * runs.most_devices else None


def outside_of(setup: Setup, implementation: str) -> tuple[str, ...]:
    """Every side on which the plan lies outside of the validated ones, in words.

    The device is no side: predictions for those of which one source or none was known were off by as much as others.
    """
    known, said = load_validated(), []
    few = {name: known.sources.get(name, 0) for name in few_sources(setup, implementation)}
    for name, count in few.items():
        what = f"trainer {name}" if name == implementation else TRAITS.get(name, "context parallelism")
        verb = "used" if name == implementation else "had"
        said.append(f"one published source alone {verb} {what}" if count else f"no published run {verb} {what}")
    if setup.mixed is not None:
        said.append("no published run mixed types of devices")
    ranges = known.trainers.get(implementation)
    if ranges is None:
        return tuple(said)
    missing = [TRAITS[trait] for trait in traits_of(setup) if trait not in known.traits[implementation]]
    said += [f"{trait}: in no row of {implementation}" for trait in missing]
    sizes = sizes_of(setup)
    said += [_complaint(NAMES[name], sizes[name], ranges[name], implementation) for name in sizes if name in ranges]
    return tuple(filter(None, said))


def sizes_of(setup: Setup) -> dict[str, float]:
    """Return the sizes of a plan, by the names of NAMES."""
    parallel = setup.parallel
    return {
        "devices": parallel.world_size,
        "parameters": num_parameters(setup.model) / GIGA,
        "sequence": setup.model.seq_length,
        "tensor": parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "context": parallel.context_parallel_size,
        "micro_batch": setup.batch.micro_batch_size,
    }


def _complaint(name: str, size: float, seen: Range, implementation: str) -> str:
    said = name.format(_size_text(size))
    if size > MARGIN * seen.highest:
        return f"{said}: rows of {implementation} have at most {_size_text(seen.highest)}"
    if size < seen.lowest / MARGIN:
        return f"{said}: rows of {implementation} have at least {_size_text(seen.lowest)}"
    return ""


def _size_text(size: float) -> str:
    """A count whole, however large."""
    return f"{size:,.0f}" if size >= 1000 else f"{size:.4g}"


TRAITS = {  # name, and how a sentence calls it
    "fp32": "fp32 products",
    "fp8": "fp8 products",
    "fp4": "fp4 products",
    "experts": "experts",
    "latent": "latent attention",
    "tensor-network": "tensor groups that reach over the network",
}


def traits_of(setup: Setup) -> tuple[str, ...]:
    """Return the members of TRAITS that the plan has. Nothing here tells products in bf16 and fp16 apart."""
    recipe = setup.precision.matmul_recipe
    has = {
        "fp32": recipe is None and setup.precision.dtype == "fp32",
        "fp8": recipe is not None and "fp8" in recipe,
        "fp4": recipe is not None and "fp4" in recipe,
        "experts": setup.model.experts is not None,
        "latent": setup.model.latent_attention is not None,
        "tensor-network": _leaves_fast_links(setup),
    }
    return tuple(name for name in TRAITS if has[name])


def _leaves_fast_links(setup: Setup) -> bool:
    """True if a tensor-parallel group has more devices than any link spans that is faster than the network."""
    inner = [link.num_devices for link in setup.cluster.links[:-1]]
    return bool(inner) and setup.parallel.tensor_parallel_size > max(inner)


class Range(Frozen):
    """The smallest and the largest value among the rows."""

    lowest: float
    highest: float


class Validated(Frozen):
    """The lesson of rows that were left out: constants were fitted without all rows of a row's generation of devices.

    Attributes:
        rivals: by how much the ratio of two predictions of one model on one machine was off, in four of five pairs.
        rows, tables: how many it rests on.
        sources: how many sources measured each trainer and kind of plan, by name.
        trainers: names of the trainers that ran them, each with the ranges of its rows, by what is measured.
        traits: what rows of each trainer had, by the names of TRAITS.
    """

    rivals: NonNegative
    rows: Annotated[int, Field(ge=0)]
    tables: Annotated[int, Field(ge=0)]
    sources: dict[str, int]
    trainers: dict[str, dict[str, Range]]
    traits: dict[str, Annotated[tuple[str, ...], Field(strict=False)]]


@cache
def load_validated() -> Validated:
    return Validated.model_validate(package_content("validated.yaml", "sweeps"))


SMALL_LAYER_FLOPS = 2e12
SMALLEST_LAYER_FLOPS = 4e9
SMALLER_IS_WIDER = 0.1
"""Rows whose source was left out are off by 6.8 % where layers are that large, by 9.9 % at a fourth to a tenth of it
and by 11.2 % at a hundredth: a host has to launch their kernels, which differs between clusters more than what devices
compute. The smallest layers of published rows end it: of smaller ones nobody knows more."""

FEW_SOURCES = 2


def width_of(setup: Setup) -> float:
    """Factor on the logarithms of an interval's ends: a small power of how far a layer is below the usual size."""
    layer = max(layer_flops_per_device(setup), SMALLEST_LAYER_FLOPS)
    return float(max(1.0, SMALL_LAYER_FLOPS / layer) ** SMALLER_IS_WIDER)


def few_sources(setup: Setup, implementation: str) -> tuple[str, ...]:
    """Return the plan's trainer, and of its kinds the rarest, where fewer sources than FEW_SOURCES had them."""
    sources = load_validated().sources
    # A trainer that runs of the cluster's own show is none that nobody has seen.
    machines = () if has_own_runs(setup, implementation) else ((implementation,),)
    rarest = [min(names, key=lambda name: sources.get(name, 0)) for names in (*machines, kinds_of(setup)) if names]
    return tuple(name for name in rarest if sources.get(name, 0) < FEW_SOURCES)


def has_own_runs(setup: Setup, implementation: str) -> bool:
    """True if the cluster's file knows runs of its own of this trainer, about as large as the plan or with a level."""
    return _own_runs(setup, implementation) is not None or own_level(setup, implementation) is not None


def kinds_of(setup: Setup) -> tuple[str, ...]:
    """Return the kinds of a plan that sources may not have measured: its traits, and context parallelism."""
    return (*traits_of(setup), *(("context",) if setup.parallel.context_parallel_size > 1 else ()))


def layer_flops_per_device(setup: Setup) -> float:
    """FLOPs of one layer's forward pass of one micro-batch on one device."""
    parallel = setup.parallel
    ranks = parallel.tensor_parallel_size * parallel.context_parallel_size
    return layer_forward_flops(setup.model, setup.batch.micro_batch_size) / ranks
