"""Turns the steps read from a log into a `Performance`. Operations are counted by our formula, as for every trial."""

from __future__ import annotations

import os
import platform
import socket
import statistics
from collections.abc import Mapping, Sequence

from conf.plan.experiment import Experiment
from train_core.costs import FLOPS_FORMULA, IMPLEMENTATIONS, executed_flops, model_flops, num_parameters
from train_core.measurement import NOT_KNOWN, Environment, Performance, StepMetrics
from train_core.process.git_sha import git_sha

OF_THE_FILE = "the cluster file, not measured"
"""The source of a peak where our own trainer would measure it in the same run, as on a CPU."""


def devices_in_use(experiment: Experiment) -> int:
    """GPUs, or on CPUs the cores, which several ranks of a node may share."""
    size = experiment.parallel.world_size
    if experiment.cluster.device.kind == "gpu":
        return size
    return experiment.num_nodes * min(experiment.tasks_per_node, len(os.sched_getaffinity(0)))


def performance_of(
    experiment: Experiment, steps: Sequence[StepMetrics], tflops: Mapping[int, float], memory_bytes: int | None
) -> Performance | None:
    """The measurement over the steps after warm-up; None where there is no such step.

    Args:
        tflops: of single steps and of one device, as the program printed them.
        memory_bytes: the most that any rank is known to have used.
    """
    timed = [step for step in steps if not step.warmup]
    if not timed:
        return None
    times = [step.step_seconds for step in timed]
    batch, num_devices, seconds = (
        experiment.batch.global_batch_size,
        devices_in_use(experiment),
        statistics.median(times),
    )
    needed = model_flops(experiment.model, batch)
    executed = executed_flops(experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])
    rate, peak = 1 / (seconds * num_devices), experiment.peak_flops_per_second
    declared = experiment.cluster.device.peak_source
    printed = [tflops[step.step] for step in timed if step.step in tflops]
    recorded = {step.step for step in steps}
    num_steps = experiment.training.num_steps
    return Performance(
        step_seconds=seconds,
        step_seconds_min=min(times),
        step_seconds_max=max(times),
        num_timed_steps=len(timed),
        num_devices=num_devices,
        tokens_per_second=batch * experiment.model.seq_length / seconds,
        model_flops=needed,
        hardware_flops=executed,
        flops_formula=FLOPS_FORMULA,
        model_flops_per_second_per_device=needed * rate,
        hardware_flops_per_second_per_device=executed * rate,
        peak_flops_per_second=peak,
        peak_source=OF_THE_FILE if declared == "measured" else declared,
        model_flops_utilization=needed * rate / peak,
        hardware_flops_utilization=executed * rate / peak,
        peak_memory_bytes=() if memory_bytes is None else (memory_bytes,),
        losses=tuple(step.loss for step in steps),
        unrecorded_steps=tuple(n for n in range(1, num_steps + 1) if n not in recorded),
        final_loss=steps[-1].loss,
        num_parameters=num_parameters(experiment.model),
        tflops_as_printed=statistics.median(printed) if printed else None,
    )


def environment_of(experiment: Experiment, program_code: str) -> Environment:
    """Return where and with which code the program ran. Only itself knows its versions of torch and Python."""
    device = experiment.cluster.device
    on_cpu = device.kind == "cpu"
    return Environment(
        hostname=socket.gethostname(),
        device=platform.processor() or platform.machine() if on_cpu else device.name,
        backend=experiment.trainer.name,
        torch_version=NOT_KNOWN,
        python_version=NOT_KNOWN,
        git_sha=git_sha(),
        trainer_code=program_code,
        num_cores=os.cpu_count() or 1,
    )
