"""The texts of the files in a folder of one's own. Every number says where it is from, and what to correct."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cli.commands.init.machine import DescribedMachine, option_taken
from conf.compose.plausible import PLACEHOLDER
from conf.units import count_of
from launcher.slurm.cluster import SlurmSite

MODEL, SWEEP = "my-model", "my-sweep"
FOLDER = "config"
TRIAL_MINUTES = 30
TEXTS = Path(__file__).parent / "texts"
SIZES = ("size", "layers", "hidden", "ffn", "heads", "vocab", "seq")
BIG = ("1.3 billion parameters", 24, 2048, 8192, 16, 50304, 2048)
SMALL = ("a few thousand parameters", 4, 64, 256, 4, 256, 64)


def texts(machine: DescribedMachine, site: SlurmSite | None) -> dict[str, str]:
    unknown = {} if machine.is_known else {device_file(machine): _device(machine)}
    return {
        "trisweep.yaml": _filled("site", folder=FOLDER),
        **unknown,
        f"{FOLDER}/cluster/{machine.name}.yaml": _cluster(machine),
        f"{FOLDER}/slurm/{machine.name}.yaml": _slurm(machine, site),
        f"{FOLDER}/model/{MODEL}.yaml": _filled("model", name=MODEL, **_model(machine)),
        f"{FOLDER}/sweep/{SWEEP}.yaml": _sweep(machine),
    }


def _filled(text: str, /, **values: object) -> str:
    """One of the texts beside this module, its places filled in."""
    return (TEXTS / f"{text}.txt").read_text().format(**values)


def _model(machine: DescribedMachine) -> dict[str, Any]:
    return dict(zip(SIZES, BIG if machine.has_gpus else SMALL, strict=True))


def device_file(machine: DescribedMachine) -> str:
    """The file of a device that nothing describes, from the folder of one's own."""
    return f"{FOLDER}/device/{machine.device}.yaml"


def precision_of(machine: DescribedMachine) -> str:
    """The option of group `precision` that its devices are for."""
    return "bf16" if "bf16" in machine.similar.device.peak_flops_per_second and machine.has_gpus else "fp32"


def _device(machine: DescribedMachine) -> str:
    other, called = machine.similar.device, machine.called
    return _filled(
        "device",
        called=called,
        name=as_text(called.upper()),
        cluster=f"{FOLDER}/cluster/{machine.name}.yaml",
        source=as_text(f"{PLACEHOLDER}: fill in {device_file(machine)}"),
        peaks="\n".join(f"  {dtype}: {peak:.3e}" for dtype, peak in other.peak_flops_per_second.items()),
        similar=other,
    )


def as_text(value: str) -> str:
    """The value as YAML reads it back: quoted, because `3090`, `no` and `12:30` would be none."""
    return json.dumps(value, ensure_ascii=False)


def _cluster(machine: DescribedMachine) -> str:
    similar, offer = machine.similar, machine.offer
    named = option_taken(similar.name, "efficiency")
    return _filled(
        "cluster",
        headline=f"{machine.name}: {count_of(machine.num_nodes, 'node')} of {machine.devices_per_node}"
        f" x {machine.called}, {machine.source}.",
        machine=machine,
        similar=similar,
        nodes_source="by --nodes" if machine.has_stated_nodes else machine.source,
        device_source=_device_source(machine),
        efficiency_default=f"  - /efficiency@efficiency: {named}\n" if named else "",
        efficiency=_efficiency(machine),
        cores="null" if machine.has_gpus or offer is None else offer.num_cores,
        links="".join(_filled("link", link=link, similar=similar) for link in machine.links),
    )


def _device_source(machine: DescribedMachine) -> str:
    gpu_type = machine.offer.gpu_type if machine.offer else None
    if machine.offer is None or machine.is_like:
        return f"{machine.source}; `trisweep list device` has all"
    if not machine.has_gpus:
        return "Slurm knows of no GPU there"
    others = ", ".join(machine.device_candidates[:4])
    if not machine.is_known:
        return f"a file to fill in, as nothing describes {'it' if gpu_type is None else gpu_type}"
    return f"Slurm calls it {gpu_type}" + (f", which may also be {others}: check its memory" if others else "")


def _efficiency(machine: DescribedMachine) -> str:
    """The values that the similar cluster's file has of its own; a chip's file has the others."""
    efficiency = machine.similar.efficiency
    source = f"as in cluster {machine.similar.name}"
    if option_taken(machine.similar.name, "efficiency"):
        return f"  link: {efficiency.link}\n  link_source: {source}"
    names = ("matmul", "attention", "memory", "link", "kernel_seconds")
    return "\n".join([*(f"  {name}: {getattr(efficiency, name)}" for name in names), f"  source: {source}"])


def _slurm(machine: DescribedMachine, site: SlurmSite | None) -> str:
    offer = machine.offer
    accounts = sorted({account for account, *_ in site.associations}) if site else []
    most = offer.most_minutes if offer else None
    others = f" # or {', '.join(machine.others)}" if machine.others else ""
    return _filled(
        "slurm",
        name=machine.name,
        partition=f"{as_text(offer.partition)}{others}" if offer else "null # the site's default one",
        accounts=f"yours: {', '.join(accounts)}" if accounts else "your project, where the site asks for one",
        minutes=TRIAL_MINUTES if most is None else int(min(TRIAL_MINUTES, most)),
        limit="" if most is None else f"; the partition gives at most {most:g}",
        cores=max(1, offer.num_cores // machine.devices_per_node) if offer else "null",
        cores_source=f": {offer.num_cores} of a node by sinfo, fewer where the site keeps some" if offer else "",
        request="gpus-per-node" if machine.has_gpus else "none",
        gpu_type=as_text(offer.gpu_type) if offer and offer.gpu_type else "null",
    )


def _sweep(machine: DescribedMachine) -> str:
    per_node = machine.devices_per_node
    world_size = min(machine.num_devices, 2 * per_node)
    heads = _model(machine)["heads"]
    tensor = [size for size in (1, 2, 4, 8) if per_node % size == 0 and heads % size == 0]
    return _filled(
        "sweep",
        name=machine.name,
        model=MODEL,
        sweep=SWEEP,
        precision=precision_of(machine),
        world_size=world_size,
        batch=16 * world_size,
        tensor=tensor,
    )
