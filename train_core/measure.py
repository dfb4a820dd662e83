"""From step times to a `Performance`: what is timed, what the peak is, and which devices share the work."""

from __future__ import annotations

import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from conf.experiment import Experiment
from train_core.collectives import Axis, gather, gather_objects, total
from train_core.costs import FLOPS_FORMULA, hardware_flops, model_flops, num_parameters
from train_core.measurement import Performance, StepMetrics
from train_core.mesh import Layout
from train_core.optimizer import StepResult
from train_core.parallelize import DTYPES
from train_core.step_terms import TermsHistory, breakdown_of, stragglers, terms_of
from train_core.world import World, usable_cores

MEASURED = "measured"
MATMUL_SECONDS = 0.5
MATMUL_SIZES = {"cpu": 1024, "cuda": 8192}
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def count_devices(world: World, axis: Axis) -> int:
    """Physical devices that the ranks use: GPUs, or on CPUs the cores, which several ranks may share."""
    if world.device.type != "cpu":
        return world.size
    machine = BOOT_ID.read_text().strip() if BOOT_ID.exists() else "this"
    cores_of: dict[str, set[int]] = defaultdict(set)
    ranks_of: dict[str, int] = defaultdict(int)
    for name, cores in gather_objects((machine, usable_cores()), axis):
        cores_of[name] |= cores
        ranks_of[name] += 1
    return sum(min(ranks_of[name], len(cores_of[name])) for name in ranks_of)


def matmul_flops_per_second(world: World, axis: Axis, dtype: torch.dtype, seconds: float = MATMUL_SECONDS) -> float:
    """What all ranks reach together, each multiplying square matrices for the same half second."""
    n = MATMUL_SIZES[world.device.type]
    a = torch.rand(n, n, device=world.device).to(dtype)  # constant data would draw less power and clock higher
    out = torch.mm(a, a)  # the first product also loads kernels
    synchronize(world.device)
    total([0.0], axis, world.device)
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        torch.mm(a, a, out=out)
        synchronize(world.device)
        done += 1
    return total([2 * n**3 * done / elapsed], axis, world.device)[0]


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Device memory that was allocated at most; on a CPU the largest resident set of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


class Meter:
    """Times steps and turns them into metrics. Every rank has one; all get the same numbers."""

    def __init__(self, experiment: Experiment, world: World, axis: Axis) -> None:
        self.experiment, self.world, self.axis = experiment, world, axis
        self.num_devices = count_devices(world, axis)
        self.peak, self.peak_source = self._peak()
        self._forget_peak_memory()
        self.layout, self.history = Layout.of(experiment), TermsHistory()
        self.timed_seconds: list[float] = []
        self.losses: list[float] = []

    def _peak(self) -> tuple[float, str]:
        """(FLOP/s of one device, where the number comes from)."""
        declared = self.experiment.cluster.device.peak_source
        if declared != MEASURED:
            return self.experiment.peak_flops_per_second, declared
        dtype = DTYPES[self.experiment.precision.dtype]
        return matmul_flops_per_second(self.world, self.axis, dtype) / self.num_devices, MEASURED

    def _forget_peak_memory(self) -> None:
        """Building the model and measuring the peak took memory too, but are not what is measured."""
        if self.world.device.type == "cuda":
            synchronize(self.world.device)
            torch.cuda.reset_peak_memory_stats(self.world.device)

    def timed(self, step: int, run: Callable[[], StepResult]) -> StepMetrics:
        """Run one step. Its time is the slowest rank's; finding that out lies outside it."""
        total([0.0], self.axis, self.world.device)  # all start together, however long rank 0 reported the last step
        start = time.perf_counter()
        result = run()
        synchronize(self.world.device)
        elapsed = time.perf_counter() - start
        is_warmup = step <= self.experiment.training.num_warmup_steps
        is_timed = not is_warmup and step not in self.experiment.profile.trace_steps
        self.history.add(terms_of(elapsed, self.world.clock.seconds_by_name()), is_timed=is_timed)
        of_ranks = gather([elapsed, self.history.recent_own_seconds()], self.axis, self.world.device)
        seconds = max(elapsed for elapsed, _ in of_ranks)
        if is_timed:
            self.timed_seconds.append(seconds)
        self.losses.append(result.loss)
        plan, batch, model = self.experiment.training, self.experiment.batch, self.experiment.model
        return StepMetrics(
            step=step,
            num_steps=plan.num_steps,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            learning_rate=result.learning_rate,
            step_seconds=seconds,
            tokens_per_second=batch.global_batch_size * model.seq_length / seconds,
            model_flops_per_second_per_device=model_flops(model, batch.global_batch_size) / seconds / self.num_devices,
            warmup=is_warmup,
            stragglers=self._stragglers([own for _, own in of_ranks]),
            time=time.time(),
        )

    def performance(self) -> Performance:
        """Over the steps after warm-up that were not traced. Every rank calls it, because memory is gathered."""
        experiment, batch = self.experiment, self.experiment.batch.global_batch_size
        timed = self.timed_seconds
        seconds = statistics.median(timed)
        needed = model_flops(experiment.model, batch)
        executed = hardware_flops(experiment.model, batch, experiment.parallel.recompute)
        rate = 1 / (seconds * self.num_devices)
        breakdown = breakdown_of(gather(self.history.medians(), self.axis, self.world.device))
        return Performance(
            step_seconds=seconds,
            step_seconds_min=min(timed),
            step_seconds_max=max(timed),
            num_timed_steps=len(timed),
            num_devices=self.num_devices,
            tokens_per_second=batch * experiment.model.seq_length / seconds,
            model_flops=needed,
            hardware_flops=executed,
            flops_formula=FLOPS_FORMULA,
            model_flops_per_second_per_device=needed * rate,
            hardware_flops_per_second_per_device=executed * rate,
            peak_flops_per_second=self.peak,
            peak_source=self.peak_source,
            model_flops_utilization=needed * rate / self.peak,
            hardware_flops_utilization=executed * rate / self.peak,
            peak_memory_bytes=self._memory_of_all_ranks(),
            losses=tuple(self.losses),
            final_loss=self.losses[-1],
            num_parameters=num_parameters(experiment.model),
            breakdown=breakdown if experiment.profile.breakdown else None,
            stragglers=self._stragglers([terms.own_seconds for terms in breakdown.ranks]),
        )

    def _stragglers(self, own_seconds: list[float]) -> tuple[int, ...]:
        return stragglers(own_seconds, self.layout, self.experiment.watch.straggler_ratio)

    def _memory_of_all_ranks(self) -> tuple[int, ...]:
        return tuple(gather_objects(peak_memory_bytes(self.world.device), self.axis))
