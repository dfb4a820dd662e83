"""Faults of real machines, brought about from outside: a rank stops, memory ends, a job dies."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial

from benchmarks.gpu_check.agreement import EXACT, figures_of, finding_on_bits, finding_on_steps, finding_on_unfinished
from benchmarks.gpu_check.check import Check, CheckFinding, CheckLeftOut
from benchmarks.gpu_check.layouts import CheckLayout
from benchmarks.gpu_check.workbench import CheckWorkbench, JobRun
from conf.plan.experiment import Experiment
from conf.types.schema import Value
from conf.units import GIBIBYTE, MEBIBYTE
from costs import estimate
from train_core.trial.measurement import Outcome

PART = "faults"
STEPS_BEFORE_FAULT = 3
OVERFULL = 1.5
"""The size of tensors that should not fit, as a multiple of the device's memory."""

MOST_SEQUENCES = 2**24
ALLOCATED = re.compile(r"([\d.]+) ([GM]iB) is allocated by PyTorch")


def faults(bench: CheckWorkbench) -> Iterator[Check]:
    start, hang = bench.scale.start_seconds, bench.scale.hang_seconds
    num_ranks = 4 if bench.num_ranks >= 4 else 2
    yield Check("a rank that stops is named", PART, num_ranks, start + 2 * hang, partial(_hang, bench))
    alone = bench.num_ranks if bench.shares_devices else 1  # what shares its GPU would run out of memory too
    yield Check("too large a batch is out of memory", PART, alone, start, partial(_out_of_memory, bench))
    yield Check("killed, it goes on where it was saved", PART, 1, 3 * start, partial(_resume, bench))
    yield Check("saved in one layout, loaded in another", PART, num_ranks, 3 * start, partial(_reshard, bench))


def _hang(bench: CheckWorkbench, devices: tuple[int, ...]) -> CheckFinding:
    """Stop the last rank with SIGSTOP, as a broken device or a stuck host would, and see who is blamed."""
    layout = CheckLayout(pipeline=2, data=2) if len(devices) == 4 else CheckLayout(data=2, zero_stage=1)
    values: dict[str, Value] = {**layout.values(), "training.num_steps": 100_000}
    job = bench.start("hang", bench.small("GPT", "fp32", values), devices, 3 * bench.scale.trial_seconds)
    if not job.wait_until(lambda: len(job.trial.read_metrics()) >= STEPS_BEFORE_FAULT):
        ran = bench.wait_for(job)
        return CheckFinding(passed=False, seen=f"it ended before the fault: {ran.why}", figures=figures_of(ran))
    stopped = layout.num_ranks - 1
    pid = job.pid_writing(job.trial.rank_log(stopped))
    if pid is None:
        job.kill()
        raise CheckLeftOut(f"the process of rank {stopped} was not found")
    os.kill(pid, signal.SIGSTOP)
    ran = bench.wait_for(job)
    named = ran.measurement.outcome is Outcome.FAILED and ran.measurement.failing_rank == stopped
    seen = f"rank {stopped} of {layout} was stopped. {ran.why}"
    return CheckFinding(passed=named, seen=seen, figures=_without_steps(ran) | {"stopped": stopped})


def _out_of_memory(bench: CheckWorkbench, devices: tuple[int, ...]) -> CheckFinding:
    """Train with a batch that the cost model says is too large by half, or more."""
    experiment = _overfull(bench)
    # A CPU has no memory of a device's size, so the process is given as little as the cluster's file says.
    memory = None if bench.kind == "gpu" else experiment.cluster.device.memory_bytes
    ran = bench.run("overfull", experiment, devices, memory=memory)
    recognised = ran.measurement.outcome is Outcome.OUT_OF_MEMORY
    predicted = estimate(experiment).allocated_bytes
    allocated = _allocated_bytes(ran.measurement.cause)
    held = "" if allocated is None else f", {allocated / GIBIBYTE:.1f} GiB allocated by then"
    seen = f"{ran.measurement.outcome} ({predicted / GIBIBYTE:.1f} GiB predicted{held}): {ran.measurement.cause}"
    figures = _without_steps(ran) | {"predicted_bytes": predicted, "allocated_bytes": allocated}
    return CheckFinding(passed=recognised, seen=seen, figures=figures)


def _overfull(bench: CheckWorkbench) -> Experiment:
    """A small model with the first power of two of sequences that does not fit."""
    sequences = 1
    while sequences <= MOST_SEQUENCES:
        values: dict[str, Value] = {
            **bench.scale.overfull,
            "data.source": "synthetic",
            "batch.micro_batch_size": sequences,
            "batch.global_batch_size": sequences,
        }
        experiment = bench.small("GPT", "fp32", values)
        if estimate(experiment).allocated_bytes >= OVERFULL * experiment.cluster.device.memory_bytes:
            return experiment
        sequences *= 2
    raise CheckLeftOut(f"{MOST_SEQUENCES} sequences still fit")


def _allocated_bytes(cause: str) -> int | None:
    """The bytes that PyTorch had allocated when a GPU refused more, by its own words."""
    found = ALLOCATED.search(cause)
    return found and int(float(found[1]) * (GIBIBYTE if found[2] == "GiB" else MEBIBYTE))


def _resume(bench: CheckWorkbench, devices: tuple[int, ...]) -> CheckFinding:
    """Kill a training at once after a checkpoint, run it again, and compare all its steps with an undisturbed one's."""
    scale = bench.scale
    values: dict[str, Value] = {**EXACT, "batch.micro_batch_size": 8, "training.num_steps": scale.long_steps}
    undisturbed = bench.run("undisturbed", bench.small("GPT", "fp32", values), devices)
    saving = bench.small("GPT", "fp32", {**values, "checkpoint.every_steps": scale.save_every})
    job = bench.start("killed", saving, devices, scale.trial_seconds)
    if not job.wait_until(lambda: any(job.trial.checkpoints.glob("step-*"))):
        ran = bench.wait_for(job)
        return CheckFinding(passed=False, seen=f"it ended before it was killed: {ran.why}", figures=figures_of(ran))
    job.kill()
    reached = len(job.trial.read_metrics())
    if reached == scale.long_steps:
        raise CheckLeftOut("the training had ended before it could be killed")
    saved = max(path.name for path in job.trial.checkpoints.glob("step-*"))
    resumed = bench.run("killed", saving, devices)
    finding = finding_on_bits(resumed, undisturbed)
    seen = f"killed after step {reached}, went on from {saved}; {finding.seen}"
    return finding.model_copy(update={"seen": seen})


def _reshard(bench: CheckWorkbench, devices: tuple[int, ...]) -> CheckFinding:
    """Save on several devices, load on one and on several in another layout: the same next steps."""
    wide = len(devices) == 4
    saved_in = CheckLayout(tensor=2, pipeline=2) if wide else CheckLayout(tensor=2, sequence_parallel=True)
    loaded_in = CheckLayout(data=4, zero_stage=1) if wide else CheckLayout(pipeline=2, schedule="zero-bubble")
    saving = {**saved_in.values(), "checkpoint.every_steps": STEPS_BEFORE_FAULT}
    steps: dict[str, Value] = {"training.num_steps": STEPS_BEFORE_FAULT}
    first = bench.run("saved", bench.small("GPT", "fp32", {**saving, **steps}), devices)
    if unfinished := finding_on_unfinished(first):
        return unfinished
    load: dict[str, Value] = {**steps, "checkpoint.load": str(bench.trial("saved").checkpoints.absolute())}
    alone = bench.run("loaded-alone", bench.small("GPT", "fp32", {**load, "batch.micro_batch_size": 8}), devices)
    other = bench.run("loaded", bench.small("GPT", "fp32", {**load, **loaded_in.values()}), devices)
    if unfinished := finding_on_unfinished(alone, other):
        return unfinished
    finding, what = finding_on_steps(other, alone.steps, "fp32"), f"{saved_in} to {loaded_in} and to one device"
    if other.steps[0].loss >= first.steps[0].loss:  # new weights would begin where the first training began
        return finding.model_copy(update={"passed": False, "seen": f"{what}: it began with new weights"})
    return finding.model_copy(update={"seen": f"{what}: {finding.seen}"})


def _without_steps(ran: JobRun) -> dict[str, object]:
    return {name: value for name, value in figures_of(ran).items() if name != "steps"}
