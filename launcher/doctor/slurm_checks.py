"""A Slurm site held against the settings under `slurm`: what works, what does not, what to change."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from conf.folders import shown_file
from conf.types.cluster_spec import ClusterSpec
from conf.types.durations import minutes
from conf.types.sites import SlurmSpec
from conf.units import count_of
from launcher.doctor.node_report import CheckResult, Findings
from launcher.doctor.tiny_job import TinyJob
from launcher.external_commands import ask, gpus_in
from launcher.slurm.cluster import TOOLS, SlurmSite, best_of, node_kinds, read_site, this_cluster
from launcher.slurm.shell import environment_of_sbatch, shell_lines
from launcher.slurm.workplace import qos_of_jobs

SLURM = Findings("Slurm")
LEAST_JOB_AGE_SECONDS = 300
MOST_CLOCK_SECONDS = 60


def slurm_findings(wanted: TinyJob) -> Iterator[CheckResult]:
    """Ask the site, and hold its answers against what this job, like those of a sweep, would ask it for.

    Raises:
        ConfigError: the text of such a job cannot be written.
    """
    sbatch = wanted.sbatch()
    if wanted.slurm.scheduler == "pbs":
        remedy = "Try a sweep of a few short trials there first."
        yield SLURM.warning("Slurm", "jobs go to PBS (slurm.scheduler), which the doctor does not examine", remedy)
        return
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        yield SLURM.problem("tools", f"no {', '.join(missing)} on the PATH", "Run this on a Slurm login node.")
        return
    site = read_site()
    if site is None:
        yield SLURM.problem("controller", "does not answer `scontrol show config`", "Try again, or on a login node.")
        return
    yield SLURM.ok("controller", f"Slurm {site.version}, cluster {site.name}")
    yield _clock()
    yield _accounting(site)
    yield from _partition(site, wanted)
    yield _account(site, wanted.slurm)
    yield from _qos(site, wanted)
    yield _arrays(site, wanted.slurm)
    yield _requeue(site)
    yield _preemption(site)
    if wanted.slurm.container != "none":
        yield _container(wanted.slurm)
    if site.offered(wanted.slurm.partition):
        yield _devices(wanted)
        yield from _cores(wanted)
    yield from (SLURM.ok("your shell", line) for line in shell_lines(wanted.slurm))
    yield _test_submission(sbatch, wanted.slurm)


def _container(slurm: SlurmSpec) -> CheckResult:
    """Find the image, where it is a file or folder; whether Python starts in it, the job below says."""
    image = str(slurm.container_image)
    says = f"{slurm.container} runs {image}"
    if "://" not in image and slurm.container != "pyxis" and not Path(image).exists():
        return SLURM.problem("container", f"{says}, which is not here", "Set slurm.container_image to its whole path.")
    return SLURM.ok("container", says)


def _clock() -> CheckResult:
    behind = this_cluster().now - time.time()
    if abs(behind) > MOST_CLOCK_SECONDS:
        says = f"this machine's clock is {abs(behind):.0f} s {'behind' if behind > 0 else 'ahead of'} the controller's"
        return SLURM.warning("clock", says, "Have it set; ages in tables are wrong by so much.")
    return SLURM.ok("clock", "as the controller's")


def _accounting(site: SlurmSite) -> CheckResult:
    age = site.number("MinJobAge")
    if site.keeps_accounts and not site.accounting:
        return SLURM.ok("accounting", "on: sacct tells how every job ended")
    why = "off" if not site.keeps_accounts else f"on, but sacct fails: {site.accounting}"
    remedy = "Look at running sweeps at least that often (`trisweep status`); nothing else is needed."
    says = f"{why}; the controller forgets an ended job after {age or 0:.0f} s (MinJobAge)"
    if age is not None and age < LEAST_JOB_AGE_SECONDS:
        remedy = f"Ask for accounting, or for MinJobAge={LEAST_JOB_AGE_SECONDS}: how a job ended may be lost otherwise."
    return SLURM.warning("accounting", says, remedy)


def _partition(site: SlurmSite, wanted: TinyJob) -> Iterator[CheckResult]:
    """Of several partitions one that suits is enough: Slurm takes the first in which the job can start."""
    name = wanted.slurm.partition
    partitions = site.offered(name)
    if not partitions:
        absent = ", ".join(each for each in (name or "").split(",") if each not in site.partitions)
        says = f"there is no partition {absent}" if name else "no partition was chosen, and the site has no default one"
        yield SLURM.problem("partition", says, f"Set slurm.partition to one of {', '.join(site.partitions)}.")
        return
    yield _best(map(_state, partitions))
    yield _best(_time_limit(each["PartitionName"], each, wanted.slurm) for each in partitions)
    yield _best(_nodes(each["PartitionName"], each, wanted.cluster) for each in partitions)


def _best(of_partitions: Iterable[CheckResult]) -> CheckResult:
    return min(of_partitions, key=lambda each: ("ok", "skipped", "warning", "problem").index(each.status))


def _state(partition: dict[str, str]) -> CheckResult:
    called = partition["PartitionName"]
    if partition.get("State") != "UP":
        return SLURM.problem("partition", f"{called} is {partition.get('State')}", "Wait, or set slurm.partition.")
    return SLURM.ok("partition", f"{called}, {partition.get('TotalNodes', '?')} nodes")


def _time_limit(partition: str, facts: dict[str, str], slurm: SlurmSpec) -> CheckResult:
    most, wanted = minutes(facts.get("MaxTime", "")), slurm.time_limit_minutes
    asked = f"{count_of(wanted, 'minute', 'is', 'are')} wanted"
    if most is not None and wanted > most:
        says = f"{asked}, {partition} gives at most {most:g}"
        return SLURM.problem("time limit", says, f"Set slurm.time_limit_minutes={most:g} or less.")
    allowed = "any" if most is None else f"at most {most:g}"
    return SLURM.ok("time limit", f"{asked}, {partition} gives {allowed}")


def _nodes(partition: str, facts: dict[str, str], cluster: ClusterSpec) -> CheckResult:
    limits = [int(facts[key]) for key in ("MaxNodes", "TotalNodes") if facts.get(key, "").isdigit()]
    if limits and cluster.num_nodes > min(limits):
        says = f"{_nodes_by_file(cluster)}, {partition} gives a job {min(limits)}"
        return SLURM.warning(
            "nodes", says, f"Correct num_nodes in {shown_file('cluster', cluster.name)}, or sweep fewer."
        )
    return SLURM.ok("nodes", f"{cluster.num_nodes} by the cluster's file, which a job may have")


def _nodes_by_file(cluster: ClusterSpec) -> str:
    return f"{cluster.name} has {count_of(cluster.num_nodes, 'node')} by its file"


def _account(site: SlurmSite, slurm: SlurmSpec) -> CheckResult:
    if not site.associations:
        return SLURM.skip("account", "the accounting does not say which accounts are yours")
    yours = sorted({account for account, *_ in site.associations})
    named = ", ".join(yours)
    if slurm.account is None:
        return SLURM.ok("account", f"your default one, of {named}")
    if slurm.account in yours:
        return SLURM.ok("account", slurm.account)
    says, remedy = f"{slurm.account} is none of yours", f"Set slurm.account to one of {named}."
    if "associations" in site.enforced_limits:
        return SLURM.problem("account", says, remedy)
    return SLURM.warning("account", f"{says}, which this site does not enforce", remedy)


def _qos(site: SlurmSite, wanted: TinyJob) -> Iterator[CheckResult]:
    """The QOS that jobs get, and its limits; the others that the user may choose say nothing of these jobs.

    A partition may have a QOS of its own, whose limits hold beside the job's.
    """
    slurm = wanted.slurm
    of_partitions = [each.get("QoS", "N/A") for each in site.offered(slurm.partition)]
    if of_partitions and "N/A" not in of_partitions:
        yield _best(_qos_limits(name, site.qos.get(name, {}), wanted) for name in of_partitions)
    yours = sorted({name for *_, names in site.associations for name in names})
    if slurm.qos is not None and site.qos and slurm.qos not in site.qos:
        qos_names = ", ".join(site.qos)
        yield SLURM.problem("QOS", f"there is no QOS {slurm.qos}", f"Set slurm.qos to one of {qos_names}.")
        return
    if slurm.qos is not None and yours and slurm.qos not in yours:
        yield SLURM.warning("QOS", f"{slurm.qos} is none of yours", f"Set slurm.qos to one of {', '.join(yours)}.")
        return
    if slurm.qos is None and not yours:
        yield SLURM.skip("QOS", "the accounting does not say which are yours")
        return
    name = qos_of_jobs(slurm)
    yield _qos_limits(name, site.qos.get(name, {}), wanted)


def _qos_limits(name: str, facts: dict[str, str], wanted: TinyJob) -> CheckResult:
    wall, time_limit = minutes(facts.get("MaxWall", "")), wanted.slurm.time_limit_minutes
    if wall is not None and time_limit > wall:
        says = f"{name} gives at most {wall:g} minutes, and {time_limit} are wanted"
        return SLURM.problem("QOS", says, f"Set slurm.time_limit_minutes={wall:g} or less, or another slurm.qos.")
    most_nodes = re.search(r"(?<![\w/])node=(\d+)", facts.get("MaxTRES", ""))
    if most_nodes and wanted.cluster.num_nodes > int(most_nodes[1]):
        says = f"{name} gives a job at most {count_of(int(most_nodes[1]), 'node')}; {_nodes_by_file(wanted.cluster)}"
        remedy = f"Set cluster.num_nodes={most_nodes[1]}, or another slurm.qos."
        return SLURM.warning("QOS", says, remedy)
    jobs = [f"{key} {facts[key]}" for key in ("MaxJobsPU", "MaxSubmitPU", "MaxJobsPA", "MaxSubmitPA") if facts.get(key)]
    limits = f"{', '.join(jobs)}; what is beyond is submitted later" if jobs else "no limit of jobs"
    return SLURM.ok("QOS", f"{name}: {limits}")


def _arrays(site: SlurmSite, slurm: SlurmSpec) -> CheckResult:
    most = site.number("MaxArraySize")
    if most is None:
        return SLURM.skip("job arrays", "the site does not say how large they may be")
    if slurm.max_array_size is not None and slurm.max_array_size > most:
        says = f"slurm.max_array_size = {slurm.max_array_size} is more than the site's {most:.0f}"
        return SLURM.problem("job arrays", says, "Set slurm.max_array_size=null, which takes the site's.")
    if most <= 1:
        return SLURM.warning("job arrays", "the site forbids them", "Every trial becomes a job of its own.")
    return SLURM.ok("job arrays", f"up to {most:.0f} elements, {slurm.array_parallelism} at a time")


def _requeue(site: SlurmSite) -> CheckResult:
    if site.config.get("JobRequeue") == "0":
        says = "off by default (JobRequeue=0): a trial that loses its node is submitted again by the next sweep"
        return SLURM.ok("requeue", f"{says}; long trainings ask for it")
    return SLURM.ok("requeue", "on: Slurm itself runs a job again whose node failed")


def _preemption(site: SlurmSite) -> CheckResult:
    modes = {each.get("PreemptMode", "OFF") for each in site.partitions.values()} | {site.config.get("PreemptMode", "")}
    # GANG is a way of taking turns and comes beside a mode; what happens to a preempted job the others say.
    kinds = {mode for word in modes for mode in word.upper().split(",")} - {"OFF", "", "GANG"}
    if "CANCEL" in kinds:
        remedy = "Nothing is lost: the next `trisweep sweep` submits those trials again."
        return SLURM.warning("preemption", "may cancel your jobs (PreemptMode CANCEL)", remedy)
    if "SUSPEND" in kinds:
        remedy = "A suspended job keeps its devices' memory; choose a partition whose jobs are not suspended."
        return SLURM.warning("preemption", "may suspend your jobs (PreemptMode SUSPEND)", remedy)
    return SLURM.ok("preemption", "requeues jobs, which then run again" if "REQUEUE" in kinds else "off")


def _devices(wanted: TinyJob) -> CheckResult:
    slurm, cluster = wanted.slurm, wanted.cluster
    if cluster.device.kind != "gpu":
        return SLURM.ok("devices", f"the devices of {cluster.name} are cores; no GPU is asked for")
    partition = ("--partition", slurm.partition) if slurm.partition else ()
    output = ask("sinfo", "--noheader", "--format=%G", *partition).stdout
    offered = sorted({line.strip() for line in output.splitlines() if "gpu" in line})
    if not offered and slurm.gpu_request == "none":
        return SLURM.ok("devices", "nodes are taken whole (slurm.gpu_request=none)")
    if not offered:
        remedy = "Set slurm.partition to one with GPUs, or slurm.gpu_request=none where nodes are given whole."
        return SLURM.problem("devices", "Slurm knows of no GPU there (GRES)", remedy)
    gpus = [gpus_in(line) for line in offered]
    counts = {sum(count for kind, count in line if _is_wanted(kind, slurm)) for line in gpus}
    if cluster.devices_per_node not in counts:
        says = f"nodes have {', '.join(offered)}; {cluster.name} has {cluster.devices_per_node} a node by its file"
        fitting = [kind for line in gpus for kind, count in line if kind and count == cluster.devices_per_node]
        remedy = f"Correct devices_per_node in {shown_file('cluster', cluster.name)}."
        if fitting and not any(_is_wanted(kind, slurm) for kind in fitting if slurm.gpu_type):
            remedy = f"Set slurm.gpu_type={fitting[0]}."
        found = SLURM.problem if counts == {0} and slurm.gpu_type else SLURM.warning
        return found("devices", says + (f", which are to be {slurm.gpu_type}" if slurm.gpu_type else ""), remedy)
    return SLURM.ok("devices", f"{', '.join(offered)} a node")


def _is_wanted(kind: str, slurm: SlurmSpec) -> bool:
    return slurm.gpu_type is None or kind.lower() == slurm.gpu_type.lower()


def _cores(wanted: TinyJob) -> Iterator[CheckResult]:
    """The cores that the ranks of a node ask for, against those that Slurm counts on one; nothing if unknown."""
    kind = best_of(node_kinds(), wanted.slurm.partition)
    per_task, per_node = wanted.slurm.cpus_per_task, wanted.cluster.devices_per_node
    if kind is None or per_task is None:
        return
    asks = f"{count_of(per_node, 'rank')} of {count_of(per_task, 'core')} (slurm.cpus_per_task)"
    if per_node * per_task > kind.num_cores:
        says = f"{asks} are more than the {kind.num_cores} of a node of {kind.partition}"
        yield SLURM.problem("cores", says, f"Set slurm.cpus_per_task={max(1, kind.num_cores // per_node)} or less.")
    else:
        yield SLURM.ok("cores", f"{asks}, of {kind.num_cores} a node")


def _test_submission(sbatch: str, slurm: SlurmSpec) -> CheckResult:
    """Ask Slurm whether it would take a job like those of a sweep; nothing is submitted."""
    result = ask("sbatch", "--test-only", stdin=sbatch, environment=environment_of_sbatch(slurm))
    if result.ok:
        return SLURM.ok("a sweep's job", f"would be taken: {result.complaint.removeprefix('sbatch: ')}")
    remedy = "Correct the settings under slurm; `trisweep sweep NAME --dry-run` shows the request."
    return SLURM.problem("a sweep's job", f"would be refused: {result.complaint}", remedy)
