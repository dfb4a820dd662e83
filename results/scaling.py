"""Scaling efficiency: what is left of the baseline's throughput per device when more devices do the work.

Strong scaling holds the global batch constant, weak scaling the batch per device; which one a pair of trials shows is
read from their batches. Where two trials are not comparable the answer is None with the reason, never a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from conf.plan.experiment import Experiment
from conf.units import count_of
from sweeps.reading import TrialReading
from sweeps.repeats.ranking import counted_runs, disturbances, middle_of
from train_core.measurement import Performance

ScalingKind = Literal["baseline", "strong", "weak", "layout"]


@dataclass(frozen=True)
class Scaling:
    """One trial against the declared baseline.

    Attributes:
        kind: `layout` compares two layouts on equally many devices, which is not scaling; None: not comparable.
        efficiency: model FLOP/s per device over the baseline's; 1.0 is perfect.
        speed_up: tokens per second over the baseline's, all devices together.
        note: what is held constant, or why there is no number.
        held_constant: the same without the numbers of devices; empty where nothing is.
    """

    kind: ScalingKind | None
    efficiency: float | None
    speed_up: float | None
    note: str
    held_constant: str = ""


def scalings(results: Sequence[TrialReading]) -> list[Scaling]:
    """The scaling of every result against the sweep's baseline, in the same order.

    Where the baseline was measured more than once, its middle run is what all are held against.
    """
    declared = next((result for result in results if result.trial.is_baseline), None)
    runs = [each for each in results if declared and each.performance and _are_one_point(each, declared)]
    baseline = middle_of(counted_runs(runs, disturbances(results))) if runs else declared
    return [scaling(result, baseline) for result in results]


def scaling(result: TrialReading, baseline: TrialReading | None) -> Scaling:
    """Compare `result` with `baseline`.

    Efficiency needs the same model, precision, recomputation, cluster and device; only layout and batch may differ.
    """
    if result.trial.stage:
        return _incomparable("a stage that follows a trial")
    if baseline is None:
        return _incomparable("the sweep declares no baseline that can exist")
    if baseline.performance is None or baseline.trial.experiment is None:
        return _incomparable("the baseline has not been measured")
    if result.performance is None or result.trial.experiment is None:
        return _incomparable("not measured")
    if result.trial.trial_id == baseline.trial.trial_id:
        return Scaling("baseline", 1.0, 1.0, f"the baseline: {_devices(result.performance)}")
    if _are_one_point(result, baseline):
        speed_up = result.performance.tokens_per_second / baseline.performance.tokens_per_second
        return Scaling("baseline", speed_up, speed_up, f"the baseline, another run: {_devices(result.performance)}")
    if differing := _differences(result, baseline):
        return _incomparable(f"{' and '.join(differing)} not as in the baseline")
    return _relation(result.trial.experiment, result.performance, baseline.trial.experiment, baseline.performance)


def _relation(experiment: Experiment, here: Performance, base_experiment: Experiment, base: Performance) -> Scaling:
    batch, base_batch = experiment.batch.global_batch_size, base_experiment.batch.global_batch_size
    speed_up = here.tokens_per_second / base.tokens_per_second
    efficiency = here.model_flops_per_second_per_device / base.model_flops_per_second_per_device
    ranks, base_ranks = experiment.parallel.world_size, base_experiment.parallel.world_size
    grown = f"{_devices(base)} to {here.num_devices}" + _sharing_note(ranks, here)
    if here.num_devices == base.num_devices:
        # No devices were added, so there is a speed-up and nothing that could be called efficiency.
        return Scaling("layout", None, speed_up, f"layouts compared on {_devices(here)}; this is not scaling")
    if batch == base_batch:
        return _constant_relation("strong", f"global batch of {batch}", efficiency, speed_up, grown)
    if batch * base.num_devices == base_batch * here.num_devices:
        return _constant_relation(
            "weak", f"batch of {batch / here.num_devices:g} per device", efficiency, speed_up, grown
        )
    # Ranks may share devices, as on a CPU: the batch of each rank may be constant where that of a device is not.
    if batch * base_ranks == base_batch * ranks:
        return _constant_relation("weak", f"batch of {batch / ranks:g} per rank", efficiency, speed_up, grown)
    return _incomparable(
        f"neither the global batch ({base_batch} to {batch}) nor the batch per device is held constant, {grown}"
    )


def _constant_relation(kind: ScalingKind, what: str, efficiency: float, speed_up: float, grown: str) -> Scaling:
    return Scaling(kind, efficiency, speed_up, f"{what} held constant, {grown}", what)


def _are_one_point(result: TrialReading, baseline: TrialReading) -> bool:
    here, base = result.experiment, baseline.experiment
    return here is not None and base is not None and here.fingerprint == base.fingerprint


def _differences(result: TrialReading, baseline: TrialReading) -> list[str]:
    """Names of what must be equal and is not."""
    here, base = result.trial.experiment, baseline.trial.experiment
    assert here is not None
    assert base is not None
    # The model's name is left out, because two files may describe the same model.
    unequal = {
        "model": here.model.model_dump(exclude={"name"}) != base.model.model_dump(exclude={"name"}),
        "precision": here.precision != base.precision,
        "recompute": here.parallel.recompute != base.parallel.recompute,
        # By name, as in fingerprints: what was measured stays so when a calibration corrects the cluster's file.
        "cluster": here.place != base.place,
        "device": _device(result) != _device(baseline),
    }
    return [name for name, differs in unequal.items() if differs]


def _device(result: TrialReading) -> str | None:
    environment = result.measurement.environment if result.measurement else None
    return environment.device if environment else None


def _sharing_note(ranks: int, performance: Performance) -> str:
    """Says so where several ranks share a device, as on a CPU with fewer cores than ranks."""
    return f" ({ranks} ranks share them)" if ranks > performance.num_devices else ""


def _devices(performance: Performance) -> str:
    return count_of(performance.num_devices, "device")


def _incomparable(reason: str) -> Scaling:
    return Scaling(None, None, None, reason)
