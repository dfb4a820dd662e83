"""Devices, nodes and their names, from launchers, schedulers and drivers, whatever the trainer."""

from __future__ import annotations

import math
import re

from conf.units import count_of
from diagnose.readers.commands import gpus_of
from diagnose.readers.computed import known_gpus
from diagnose.readers.said import Columns, number
from diagnose.runs import Fact, SaidBy
from sweeps.table.clusters import clusters_by_device, clusters_by_gpu, plain_name

PER_NODE = ("nproc_per_node", "num_gpus_per_node", "trainer.n_gpus_per_node", "NPROC_PER_NODE")
OF_SLURM = ("resources.accelerators", "sbatch.gpus_per_node", "sbatch.gres", "gpus_per_node", "gres")
TASKS_PER_NODE = ("sbatch.ntasks_per_node", "ntasks_per_node", "GPUS_PER_NODE", "NUM_GPUS_PER_NODE", "NGPU", "NGPUS")
NODES = ("nnodes", "num_nodes", "num_machines", "trainer.nnodes", "sbatch.nodes", "nodes")
NODE_VARIABLES = ("NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
MOST_OF_A_NODE = 16
RANKS = ("ntasks", "np", "sbatch.ntasks", "sbatch.gpus")
OF_DRIVERS = re.compile(r"\btesla\b|(?<=gh200) (?:120|480)gb")
"""What drivers add to a device's name: a GH200's gigabytes are those of its host."""
GIBIBYTE, MEBIBYTE = 2.0**30, 2.0**20


def fill_devices(columns: Columns) -> None:
    """Put `num_gpus`, `gpus_per_node` and `gpu` as far as anybody but a trainer's own arguments says them."""
    settings = columns.settings
    columns.whole("num_gpus", "world_size", "num_processes")
    per_node, nodes = _per_node(columns), settings.whole(*NODES, *NODE_VARIABLES)
    is_open = nodes is None and settings.is_known(*NODES)  # `--nnodes $NNODES`, which the script does not set
    ranks = settings.whole(*RANKS) if nodes is None else None
    if per_node is not None and not is_open and (ranks or 0) <= int(per_node.value):
        note = f"{count_of(nodes or 1, 'node')} of {per_node.value}"
        columns.computed("num_gpus", int(per_node.value) * (nodes or 1), per_node.at, note)
    if (mesh := _mesh(columns)) is not None:
        columns.take("num_gpus", mesh)
    if columns.count("num_gpus") is None:
        columns.whole("num_gpus", *RANKS, "WORLD_SIZE", "num_gpus")
    sizes = [columns.count(axis) for axis in ("dp", "tp", "pp")]
    if columns.count("num_gpus") is None and all(sizes):
        product = math.prod(size or 1 for size in (*sizes, columns.count("cp")))
        columns.computed("num_gpus", product, columns.run.columns["dp"].at, "dp x tp x pp")
    listed = settings.text("CUDA_VISIBLE_DEVICES", "include").rpartition(":")[2]
    if columns.count("num_gpus") is None and re.fullmatch(r"\d+(,\d+)*", listed) and nodes in (None, 1):
        said = settings.fact("CUDA_VISIBLE_DEVICES", "include")
        columns.computed("num_gpus", listed.count(",") + 1, said.at if said else None, f"the devices {listed}")
    devices = columns.count("num_gpus")
    if devices and nodes and nodes > 1 and devices % nodes == 0:
        columns.computed("gpus_per_node", devices // nodes, None, f"{devices} devices in {nodes} nodes")
    columns.whole("gpus_per_node", "gpu_count")  # of the machine that says so
    if (last := settings.fact("gpu_index")) is not None and last.value.isdigit():
        columns.computed("gpus_per_node", int(last.value) + 1, last.at, "as many as nvidia-smi lists")
    columns.whole("power_limit_watts", "device_power_limit")
    _fill_name(columns)


def _per_node(columns: Columns) -> Fact | None:
    """The devices of a node: as the launcher says it, else as Slurm was asked for, else as tasks or variables say.

    Where each task has a launcher of its own, or one of all nodes, the launcher says one; the others are asked first.
    """
    for least, names in ((2, PER_NODE), (2, ("num_gpus",)), (1, OF_SLURM), (2, TASKS_PER_NODE), (1, PER_NODE)):
        said = columns.settings.fact(*names)
        count = gpus_of(said.value) if said else ""
        is_of_all = said is not None and said.said_by is not SaidBy.FLAG and not columns.settings.is_known(*NODES)
        if names == ("num_gpus",) and (is_of_all or (number(count) or 0) > MOST_OF_A_NODE):
            continue  # of a program that counts all of them
        if said is not None and count and int(count) >= least:
            columns.take("gpus_per_node", said._replace(value=count))
            return said._replace(value=count)
    return None


def _mesh(columns: Columns) -> Fact | None:
    """The devices that a printed mesh holds: the product of its axes, but for those that flatten others."""
    axes = {
        name: fact
        for name, fact in columns.settings.known.items()
        if name.startswith("mesh.") and name not in ("mesh.ep", "mesh.etp")  # which lie inside the others
    }
    product, last = 1, None
    for name, fact in axes.items():
        if not fact.value.isdigit() or name in ("mesh.world", "mesh.loss", "mesh.batch", "mesh.dp_cp"):
            return None
        product, last = product * int(fact.value), fact
    return None if last is None else Fact(str(product), last.said_by, last.at, "the product of the printed mesh")


def _fill_name(columns: Columns) -> None:
    """The device by the name that its driver prints: that of a cluster file, else as it is printed, to be asked for."""
    printed = columns.settings.fact("device_name", "gpu", "resources.accelerators")
    if printed is None:
        return
    printed = printed._replace(value=re.sub(r":\d+$", "", printed.value))  # of SkyPilot's H100:8
    known = known_device(printed.value)
    for name, unit in (("device_memory_gib", GIBIBYTE), ("device_memory_mib", MEBIBYTE)):
        said = columns.settings.fact(name)
        if known and said is not None and (memory := number(said.value)):
            known = _with_memory(known, memory * unit)
    columns.take("gpu", printed._replace(value=known or printed.value, note="" if known else "no cluster file has it"))


def known_device(printed: str) -> str | None:
    """The name in tables of configurations of a device as its driver calls it; None where no cluster file has it."""
    plain = plain_name(OF_DRIVERS.sub("", printed.lower()))
    memory = next((word for word in plain.split() if word.endswith("gb")), "")
    by_memory = f"{plain.replace(memory, '').strip()}-{memory}"  # as files of group device are called
    for name in (plain, printed.lower(), by_memory, f"{plain} gcd"):
        if found := clusters_by_gpu().get(name) or clusters_by_device().get(name):
            return _named(found[0], printed)
    return None


def _with_memory(name: str, reported: float) -> str:
    """The device of the same chip that has the memory which a driver reports, a little less than it has; else `name`.

    An H100 of 95 GiB is not the one of 80 GB, which the name alone stands for.
    """
    chip = name.partition("-")[0]
    alike = [device for device in known_gpus() if device.name.partition("-")[0] == chip]
    enough = [device for device in alike if 0.995 <= device.memory_bytes / reported <= 1.05]
    return min(enough, key=lambda device: device.memory_bytes).name if enough else name


def _named(cluster: str, printed: str) -> str:
    from conf.compose.load import cluster_named

    return cluster_named(cluster).device.name or printed
