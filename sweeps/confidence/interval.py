"""The interval of a prediction: four measurements of five are expected inside."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from conf.cluster_spec import FittedRuns
from conf.setup import Setup
from conf.units import GIGA
from sweeps.confidence.traits import TRAITS, traits_of
from sweeps.confidence.validated import Range, Validated, load_validated
from sweeps.confidence.width import few_sources, width_of
from train_core.costs import Estimate, num_parameters

SHARE = 0.8
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
    """

    low_seconds: float
    high_seconds: float
    rivals: float
    outside: tuple[str, ...]


def interval_of(setup: Setup, implementation: str, estimate: Estimate) -> Interval:
    """The interval around a prediction of this trainer's step."""
    return interval_around(estimate.step_seconds, setup, implementation, load_validated())


def interval_around(seconds: float, setup: Setup, implementation: str, known: Validated) -> Interval:
    """The interval around predicted seconds of a step, by what is known of errors."""
    outside = outside_of(setup, implementation, known)
    if (runs := _own_runs(setup, implementation)) is not None:
        # What is left there is what this machine and this trainer show: few other sources make it no less certain.
        half = half_width(runs.left_out_error)
        rivals = min(known.rivals, half)
    else:
        num_few = len(_few(setup, implementation, known))
        # What is new about a machine or a trainer errs alike in all of its plans.
        half, rivals = known.half * width_of(setup, num_few), known.rivals * width_of(setup, 0)
    return Interval(seconds * exp(-half), seconds * exp(half), rivals, outside)


def half_width(left_out_error: float) -> float:
    """Return the share by which an interval reaches to both sides near runs that were predicted with this error."""
    return max(LEAST_ERROR + left_out_error, OVER_MEAN * left_out_error)


def _own_runs(setup: Setup, implementation: str) -> FittedRuns | None:
    """The runs of this trainer that the cluster's constants were fitted to, where the plan is of about their size."""
    runs = setup.cluster.efficiency.runs
    if runs is None or setup.mixed is not None or implementation not in runs.trainers.split(", "):
        return None
    return runs if setup.parallel.world_size <= MARGIN * runs.most_devices else None


def outside_of(setup: Setup, implementation: str, known: Validated) -> tuple[str, ...]:
    """Every side on which the plan lies outside of the validated ones, in words."""
    said = [_on_few(name, setup, implementation, known) for name in _few(setup, implementation, known)]
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


def _few(setup: Setup, implementation: str, known: Validated) -> tuple[str, ...]:
    """Return those of the plan's device, trainer and kinds that few sources have measured."""
    # A device and a trainer that runs of the cluster's own show are none that nobody has seen.
    own = _own_runs(setup, implementation) is not None
    return few_sources(setup, implementation, known.sources, own=own)


def _on_few(name: str, setup: Setup, implementation: str, known: Validated) -> str:
    devices = {block.cluster.device.name for block in setup.blocks}
    if name == implementation:
        verb, what = "used", f"trainer {name}"
    elif name in devices:
        verb, what = "was on" if name not in known.sources else "measured", f"device {name}"
    else:
        verb, what = "had", TRAITS.get(name, "context parallelism")
    return f"one published source alone {verb} {what}" if name in known.sources else f"no published run {verb} {what}"


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
