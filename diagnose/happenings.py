"""What slows a run beside its configuration: what its log shows as it happens, and variables set for debugging.

These are no part of the prediction. Some have a price in the log itself; those without one are named only where a run
is slower than predicted, or has no prediction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt

from conf.folders import package_content
from conf.types.cluster_spec import ClusterSpec
from conf.units import GIBIBYTE
from diagnose.evidence import OFF, FileEvidence, column_says, is_on, setting_of
from diagnose.measured import SHIFT, MeasuredSteps
from diagnose.runs import LogLine, UserRun
from diagnose.suspects import Case, Suspect
from diagnose.trainer_flags import LAUNCH_BLOCKING
from diagnose.understood import price_of, with_links
from sweeps.table.cells import text_of
from sweeps.table.clusters import with_power_of
from sweeps.table.configuration import Configuration

LEAST_SHARE = 0.03
GIGABITS = 8e-9
DEBUGGING: dict[str, str] = package_content("settings.yaml", __package__)["debugging"]
"""Variables and settings that cost time while they are on, and why."""
FUSIONS = (
    *("no_masked_softmax_fusion", "no_bias_gelu_fusion", "no_bias_swiglu_fusion", "no_bias_dropout_fusion"),
    *("no_rope_fusion", "no_gradient_accumulation_fusion", "no_persist_layer_norm"),
)
OFFLOADED = {
    "cpu_offload": "weights or the optimizer's state are kept off the devices, and come and go in every step",
    "offload": "something is kept off the devices, and comes and goes in every step",
    "activation_offload": "activations go to the host's memory and back",
}
"""What has no price, by its column."""
EVERY_STEP = 10
"""What is saved at least every so many steps is saved too often for its steps to be told from it."""
LESS_OFTEN = {"saving": "save less often, or beside the training", "evaluation": "evaluate less often"}
READING = re.compile(r"batch[-_]generator|data[-_ ]?load|get[-_]batch|data[-_]time")
HALVINGS = 20
"""Of the logarithm of a share: the rest of a range of four decades is a hundred-thousandth of the share."""
HIGH_WATTS, LEAST_POWER, MOST_POWER = 600, 0.5, 0.85
"""Devices of H100's class and above, whose sites may limit them, and the shares of their power that are asked about."""
FRAGMENTED, NEARLY_FULL = 0.6, 0.9


def suspects_of_log(run: UserRun, measured: MeasuredSteps | None, case: Case | None) -> list[Suspect]:
    """Whatever the log and the environment show, with a price where the log has one."""
    found = [
        *_debugging(run, case),
        *_offloading(run),
        *_fusions(run),
        *_unfused(run),
        *_sockets(run, measured, case),
        *_without_nvlink(run, case),
        *_recompilation(run),
    ]
    if measured is not None:
        found += [*_interruptions(run, measured), *_pace(measured), *_reading(run, measured), *_gaps(measured, case)]
    return found


def _suspect(name: str, title: str, evidence: FileEvidence, remedy: str, seconds: float | None = None) -> Suspect:
    return Suspect(name, title, (evidence,), seconds, remedy, is_measured=seconds is not None)


def _debugging(run: UserRun, case: Case | None) -> Iterator[Suspect]:
    priced = LAUNCH_BLOCKING if case and case.configuration.implementation.blocks_launches else ()
    for name, title in DEBUGGING.items():
        if name in priced:
            continue
        if found := is_on(run, name) or _is_detailed(run, name):
            yield _suspect(name, title, found, f"unset {name}" if name.isupper() else f"leave out {name}")


def _is_detailed(run: UserRun, name: str) -> FileEvidence | None:
    found = setting_of(run, name) if name == "TORCH_DISTRIBUTED_DEBUG" else None
    if found is None or found[1].value.upper() != "DETAIL":
        return None
    return FileEvidence(f"{name} = {found[1].value}", found[1].at)


def _offloading(run: UserRun) -> Iterator[Suspect]:
    for column, title in OFFLOADED.items():
        if text_of(run.row(), column).lower() not in OFF and (found := column_says(run, column)):
            yield _suspect("offloading", title, found, "keep it on the devices, where memory allows")


def _fusions(run: UserRun) -> Iterator[Suspect]:
    off = [(name, found) for name in FUSIONS if (found := is_on(run, name))]
    if off:
        names = ", ".join(name for name, _ in off)
        title = "operations that one kernel could do go through memory each"
        yield _suspect("fusions off", title, FileEvidence(f"{names} set", off[0][1].at), f"leave out {names}")


def _unfused(run: UserRun) -> Iterator[Suspect]:
    if line := next(iter(run.marks.get("unfused_softmax", [])), None):
        title = "the softmax is not the fused kernel, as its constraints are not met"
        evidence = FileEvidence(line.text.strip()[:90], line)
        yield _suspect("unfused softmax", title, evidence, "sizes that it takes, or fused (flash) attention")


def _sockets(run: UserRun, measured: MeasuredSteps | None, case: Case | None) -> Iterator[Suspect]:
    line = next(iter(run.marks.get("socket", [])), None)
    if line is None or (case and case.configuration.setup.num_nodes == 1):
        return
    title = "NCCL talks over sockets: the fast network is not used"
    if (rate := _fitting_network(measured, case)) is not None:
        title += f"; {rate:,.0f} Gb/s a node would explain the step"
    evidence = FileEvidence(line.text.strip()[:90], line)
    yield _suspect(
        "sockets", title, evidence, "NCCL_DEBUG=INFO says why; NCCL_IB_HCA and NCCL_SOCKET_IFNAME choose ports"
    )


def _without_nvlink(run: UserRun, case: Case | None) -> Iterator[Suspect]:
    line = next(iter(run.marks.get("no_nvlink", [])), None)
    if line is None or (case and case.configuration.setup.cluster.devices_per_node == 1):
        return
    title = "devices of a node are joined by PCIe, without NVLink, which the price may count on"
    evidence = FileEvidence(" ".join(line.text.split())[:90], line)
    yield _suspect("no NVLink", title, evidence, "few tensor ranks; a cluster file whose nodes are joined so")


def _fitting_network(measured: MeasuredSteps | None, case: Case | None) -> float | None:
    """Gigabits a second of a node with which the step would take what it took; None where none would explain it."""
    if measured is None or case is None or len(case.configuration.setup.cluster.links) < 2:
        return None
    configuration, cluster = case.configuration, case.configuration.setup.cluster
    share = explaining_share(lambda share: slower_network(configuration, share), measured.step_seconds, least=0.001)
    return None if share is None else network_gigabits(cluster) * share


def slower_network(configuration: Configuration, share: float) -> Configuration:
    """The configuration with this share of the bandwidth of its widest link."""
    *inner, widest = configuration.setup.cluster.links
    bandwidth = widest.bandwidth_bytes_per_second * share
    return with_links(configuration, (*inner, widest.model_copy(update={"bandwidth_bytes_per_second": bandwidth})))


def network_gigabits(cluster: ClusterSpec) -> float:
    """Gigabits a second of all ports of a node, as the cluster declares them."""
    return cluster.links[-1].bandwidth_bytes_per_second * cluster.devices_per_node * GIGABITS


def explaining_share(changed: Callable[[float], Configuration], seconds: float, least: float) -> float | None:
    """The share of something with which a step takes these seconds, all of it being faster; None where none does."""
    return crossing(lambda share: price_of([changed(share)])[0].step_seconds - seconds, least, 1.0)


def crossing(gap: Callable[[float], float], low: float, high: float) -> float | None:
    """The share between two at which a gap changes its sign; None where both ends have the same one."""
    at_low = gap(low)
    if at_low * gap(high) >= 0:
        return None
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (middle, high) if gap(middle) * at_low > 0 else (low, middle)
    return sqrt(low * high)


def questions(measured: MeasuredSteps, case: Case) -> list[Suspect]:
    """What would explain a run that nothing in its files explains: questions, with what to look at."""
    return [*_one_port(measured, case)] or [*_limited_power(measured, case)]


def _one_port(measured: MeasuredSteps, case: Case) -> Iterator[Suspect]:
    setup, interval = case.configuration.setup, case.understood.interval
    cluster = setup.cluster.with_fewest_ports() if setup.num_nodes > 1 else None
    if cluster is None or interval is None:
        return
    seconds = price_of([with_links(case.configuration, cluster.links)])[0].step_seconds
    gain, ratio = seconds - case.predicted.step_seconds, measured.step_seconds / seconds
    if gain < LEAST_SHARE * seconds or not 1 / (1 + interval.rivals) <= ratio <= 1 + interval.rivals:
        return
    ports = setup.cluster.devices_per_node
    title = f"does a ring leave a node through one of its {ports} ports? The step would take {seconds:.3g} s then"
    says = f"a step of {measured.step_seconds:.3g} s, and {setup.cluster.name} does not say how many ports a ring gets"
    remedy = "NCCL_DEBUG=INFO lists the ports of each ring; NCCL_IB_HCA and NCCL_CROSS_NIC choose them"
    yield Suspect("one port a ring?", title, (FileEvidence(says, measured.steady[0].at),), gain, remedy)


def _limited_power(measured: MeasuredSteps, case: Case) -> Iterator[Suspect]:
    setup = case.configuration.setup
    device = setup.cluster.device
    if device.kind != "gpu" or device.watts < HIGH_WATTS or case.says("power_limit_watts") is not None:
        return

    def limited(share: float) -> Configuration:
        cluster = with_power_of(setup.cluster, {"power_limit_watts": f"{share * device.watts:.6g}"})
        return replace(case.configuration, setup=setup.model_copy(update={"cluster": cluster}))

    share = explaining_share(limited, measured.step_seconds, least=LEAST_POWER)
    if share is None or share > MOST_POWER:
        return
    watts = f"{share * device.watts:,.0f} of {device.watts:,.0f} W"
    title = f"are its devices limited in power? {watts} would explain the step, and nothing in its files does"
    slower = f"its rate is {1 - case.predicted.step_seconds / measured.step_seconds:.0%} below the prediction"
    remedy = "nvidia-smi -q -d POWER shows the limit; say it as power_limit_watts=WATTS"
    yield Suspect("power limit?", title, (FileEvidence(slower, measured.steady[0].at),), None, remedy)


def _recompilation(run: UserRun) -> Iterator[Suspect]:
    if lines := run.marks.get("recompilation"):
        title = f"the compiler starts again ({len(lines)} lines)"
        evidence = FileEvidence(lines[0].text.strip()[:90], lines[0])
        yield _suspect("recompilation", title, evidence, "constant shapes, or mark what is dynamic")


def _interruptions(run: UserRun, measured: MeasuredSteps) -> Iterator[Suspect]:
    """Saving, evaluation, and single slow steps that no line explains."""
    num_steps = sum(step.covers for step in measured.steady)
    if measured.spikes and measured.spikes.share >= LEAST_SHARE:
        spikes, first = measured.spikes, measured.spikes.lines[0]
        beside = [(kind, line) for kind, lines in run.marks.items() for line in lines if _is_near(line, spikes.lines)]
        kind = beside[0][0] if beside else ""
        often = f"every {spikes.every:,} steps" if spikes.every else f"{len(spikes.lines)} times"
        title = f"single steps are slower, {often}{f', beside {kind}' if kind else ''}: {spikes.share:.0%} of the time"
        seconds = spikes.extra_seconds / (num_steps + sum(step.covers for step in spikes.lines))
        evidence = FileEvidence(f"step {first.number:,} takes {first.seconds:.3g} s", first.at)
        yield _suspect("slow steps", title, evidence, LESS_OFTEN.get(kind, "look at what runs then"), seconds)
    saved = run.marks.get("saving", [])
    if saved and num_steps / len(saved) <= EVERY_STEP:
        title = f"it saves every {max(1, round(num_steps / len(saved)))} steps, so that steps hold the saving"
        yield _suspect("frequent saving", title, FileEvidence(saved[0].text.strip()[:90], saved[0]), "save less often")


def _is_near(line: LogLine, steps: tuple[object, ...]) -> bool:
    """True if the line stands right above or below that of a slow step."""
    places = [at for step in steps if isinstance(at := getattr(step, "at", None), LogLine)]
    return any(at.file == line.file and abs((at.line or 0) - (line.line or 0)) <= 5 for at in places)


def _pace(measured: MeasuredSteps) -> Iterator[Suspect]:
    pace = measured.pace
    if pace is None or (pace.at is not None and not pace.gets_slower):
        return
    extra = (pace.slower_seconds - measured.step_seconds) * pace.slower_share
    at = pace.at or measured.steady[0].at
    evidence = FileEvidence(f"{measured.step_seconds:.3g} s, and {pace.slower_seconds:.3g} s", at)
    title = f"its steps {pace.kind}: {pace.slower_share:.0%} of them are slower"
    what = "a device that throttles or fails, from that line on" if pace.kind == SHIFT else "other jobs, heat, or data"
    yield _suspect("uneven pace", title, evidence, f"look for {what}", extra)


def _reading(run: UserRun, measured: MeasuredSteps) -> Iterator[Suspect]:
    waits = {name: seconds for name, seconds in run.timers.items() if READING.search(name.lower())}
    name, seconds = max(waits.items(), key=lambda each: each[1], default=("", 0.0))
    if LEAST_SHARE * measured.step_seconds <= seconds <= measured.step_seconds:
        evidence = FileEvidence(f"timer {name}: {seconds:.3g} s of a step", measured.steady[-1].at)
        found = _suspect("reading data", "steps wait for their data", evidence, "more workers of the loader", seconds)
        yield replace(found, is_inside_step=True)
    workers = setting_of(run, "dataloader_num_workers", "num_workers")
    if workers and workers[1].value == "0":
        title = "the process that trains reads its data itself"
        evidence = FileEvidence(f"{workers[0]} = 0", workers[1].at)
        yield _suspect("no reading beside", title, evidence, f"{workers[0]} = 2 or more")


def _gaps(measured: MeasuredSteps, case: Case | None) -> Iterator[Suspect]:
    reserved, held = measured.reserved_bytes, measured.allocated_bytes
    if case is None or reserved is None or held is None:
        return
    if held < FRAGMENTED * reserved and reserved > NEARLY_FULL * case.predicted.memory_capacity_bytes:
        says = f"{held / GIBIBYTE:.1f} GiB are held and {reserved / GIBIBYTE:.1f} reserved"
        title = "memory is full of gaps, so that the allocator asks the driver anew"
        remedy = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        yield _suspect("fragmented memory", title, FileEvidence(says, measured.steady[-1].at), remedy)


def flags_without_effect(run: UserRun, case: Case | None) -> list[FileEvidence]:
    """Settings that change nothing in such a plan, each said with why: no suspects, and no remedy either."""
    if case is None:
        return []
    setup = case.configuration.setup
    asked = {
        "overlap_grad_reduce": (setup.num_replicas == 1, "there is one replica, whose gradients nobody reduces"),
        "overlap_param_gather": (setup.num_replicas == 1, "there is one replica, which gathers nothing"),
        "overlap_comm": (setup.num_replicas == 1, "there is one replica, whose gradients nobody reduces"),
        "use_distributed_optimizer": (setup.num_replicas == 1, "there is one replica to share out among"),
        "use_flash_attn": (setup.precision.dtype == "fp32", "fused attention takes 16 bits, and this is fp32"),
        "sequence_parallel": (setup.parallel.tensor_parallel_size == 1, "there is one tensor rank"),
        "tp_comm_overlap": (setup.parallel.tensor_parallel_size == 1, "there is one tensor rank"),
    }
    found = ((is_on(run, name), because) for name, (is_moot, because) in asked.items() if is_moot)
    return [
        FileEvidence(f"{evidence.says} has no effect: {because}", evidence.at)
        for evidence, because in found
        if evidence
    ]
