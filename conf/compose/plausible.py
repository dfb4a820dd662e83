"""Figures of a cluster that cannot be, or hardly can: a unit was left out, or tiers of links do not fit the nodes.

Configurations that people write are checked when they are composed; what a trial recorded is read as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from conf.compose.complaints import validate
from conf.compose.tree import Tree, part_at
from conf.errors import ConfigError, all_at_once
from conf.types.cluster_spec import ClusterSpec
from conf.units import count_of


class Unit(NamedTuple):
    """The range of a figure in its plain unit.

    Attributes:
        possible: beyond this no device, link or site is; such a value is an error.
        usual: beyond this a value is worth a second look.
        meant: the units that data sheets use in place of the plain one, the likeliest first, with their factors.
        num_readings: how many of these are named where several fit.
    """

    name: str
    possible: tuple[float, float]
    usual: tuple[float, float]
    meant: Mapping[str, float]
    num_readings: int = 1


BITS = {"Gb/s": 1e9 / 8, "bits a second": 1 / 8}
LINK = Unit("bytes a second", (1e6, 1e14), (1e8, 5e12), {"GB/s": 1e9, "TB/s": 1e12, "MB/s": 1e6})
NETWORK = Unit("bytes a second", (1e6, 1e14), (1e8, 1.5e11), BITS | {"GB/s": 1e9}, 2)
"""Of links between nodes, which are sold by the bit: `400G` is 50e9 bytes. The fastest has 800 Gb/s for a device."""
MEMORY = Unit("bytes", (2**26, 2**46), (2**28, 2**41), {"GB": 1e9, "GiB": 2**30, "MB": 1e6, "MiB": 2**20}, 2)
MEMORY_RATE = Unit("bytes a second", (1e8, 1e15), (1e9, 5e13), {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6})
LATENCY = Unit("seconds", (1e-9, 0.1), (1e-7, 5e-3), {"microseconds": 1e-6, "nanoseconds": 1e-9, "ms": 1e-3})
PEAK = Unit("FLOP a second", (1e5, 1e18), (1e8, 1e17), {"TFLOPS": 1e12, "GFLOPS": 1e9, "PFLOPS": 1e15})
UNITS = {
    "device.memory_bytes": MEMORY,
    "device.memory_bandwidth_bytes_per_second": MEMORY_RATE,
    "device.watts": Unit("watts", (0.01, 1e5), (1, 5e3), {"kW": 1e3, "mW": 1e-3}),
    "efficiency.kernel_seconds": LATENCY._replace(possible=(0, 0.1), usual=(0, 1e-3)),
    "host_bytes_per_second": LINK,
    "site.grid_co2_grams_per_kwh": Unit("grams for a kWh", (0, 5e3), (1, 2e3), {"kg": 1e3}),
    "site.power_usage_effectiveness": Unit("times what computers draw", (1, 20), (1, 3), {"percent": 0.01}),
}
PLACEHOLDER = "another device's"
"""So `memory_source` begins in the file of a device that nobody has filled in."""
PEAKS = "device.peak_flops_per_second"


def doubts(cluster: Tree, wrong: Sequence[ConfigError] = ()) -> tuple[str, ...]:
    """One sentence for each figure of a composed cluster that is unusual; what is no number is not judged here.

    Raises ConfigError where something is `wrong` already, a figure is impossible, or the tiers of links cannot connect
    such nodes. It says then all that is wrong in the cluster.
    """
    of_figures = [doubt for key, value, unit in _figures(cluster) if (doubt := _doubt(f"cluster.{key}", value, unit))]
    said = [*of_figures, *_doubts_of_tiers(cluster), *_doubts_of_device(cluster)]
    if errors := [*wrong, *(each for each in said if isinstance(each, ConfigError))]:
        try:
            validate(ClusterSpec, cluster, "cluster.")
        except ConfigError as error:
            errors.append(error)
        raise all_at_once(errors)
    return tuple(map(str, said))


def not_modelled(model: object, trainer: object) -> Iterator[str]:
    """Sentences on what a composed model leaves out of the file that it was read from, and its trainer of the model."""
    if not isinstance(model, dict):
        return
    if left_out := model.get("left_out"):
        yield f"model.left_out: the file of {model['name']} says {left_out}; it is neither predicted nor trained here."
    scaling, is_own = model.get("rotary_scaling"), isinstance(trainer, dict) and trainer.get("kind") == "trisweep"
    if isinstance(scaling, dict) and scaling.get("kind") == "yarn" and not is_own:
        yield "model.rotary_scaling: positions are stretched by yarn, which the flags of other trainers leave out."


def _figures(cluster: Tree) -> Iterator[tuple[str, float, Unit]]:
    peaks = part_at(cluster, PEAKS)
    units = UNITS | {f"{PEAKS}.{dtype}": PEAK for dtype in (peaks if isinstance(peaks, dict) else ())}
    figures = [(key, part_at(cluster, key), unit) for key, unit in units.items()]
    for index, link in enumerate(_links(cluster)):
        of_link = {"bandwidth_bytes_per_second": _of_bandwidth(link, cluster), "latency_seconds": LATENCY}
        figures += [(f"links.{index}.{key}", link.get(key), unit) for key, unit in of_link.items()]
    for key, value, unit in figures:
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            yield key, value, unit


def _of_bandwidth(link: Mapping[str, Any], cluster: Tree) -> Unit:
    """A link that reaches beyond a node is a network's, unless it is NVLink between the nodes of a rack."""
    reach, per_node = link.get("num_devices"), cluster.get("devices_per_node")
    is_beyond = isinstance(reach, int) and isinstance(per_node, int) and reach > per_node
    return NETWORK if is_beyond and not str(link.get("name")).lower().startswith("nv") else LINK


def _doubt(key: str, value: float, unit: Unit) -> str | ConfigError | None:
    if _within(value, unit.usual):
        return None
    readings, usual = _readings(value, unit), f"{unit.name}, usually from {unit.usual[0]:g} to {unit.usual[1]:g}."
    if not _within(value, unit.possible):
        problem = f"no machine has that many {unit.name}"
        return ConfigError(key, value, problem, readings or f"It is stated in {usual}")
    return f"{key} = {value!r} is unusual in {usual} {readings}".rstrip()


def _readings(value: float, unit: Unit) -> str:
    """Units in which the value would be one of a machine, and how to write it then; empty where there is none."""
    usual = LINK.usual if unit is NETWORK else unit.usual
    fitting = [(name, factor) for name, factor in unit.meant.items() if _within(value * factor, usual)]
    said = [f"{value:g} {name}, write {_written(value, factor, unit)}" for name, factor in fitting[: unit.num_readings]]
    return f"If {'; if '.join(said).replace(',', ' was meant,', 1)}." if said else ""


def _written(value: float, factor: float, unit: Unit) -> str:
    """As files have it: counts of bytes in digits alone, because YAML reads 80e9 as no whole number."""
    if unit is MEMORY:
        return f"{round(value * factor):_}"
    exponent = round(math.log10(factor))
    if not math.isclose(factor, 10.0**exponent):  # bits
        value, exponent = value * factor / 1e9, 9
    return f"{value:g}e{exponent}"


def _doubts_of_tiers(cluster: Tree) -> Iterator[str | ConfigError]:
    per_node: Any = cluster.get("devices_per_node")
    num_nodes: Any = cluster.get("num_nodes")
    extents: list[Any] = [link.get("num_devices") for link in _links(cluster)]
    if not extents or not all(isinstance(count, int) and count > 0 for count in (per_node, num_nodes, *extents)):
        return
    total = per_node * num_nodes
    for index, extent in enumerate(extents):
        if extent < total and per_node % extent and extent % per_node:
            problem = f"a tier of {count_of(extent, 'device')} does not fit nodes of {per_node}"
            remedy = f"Take a divisor of {per_node} (inside a node), or a multiple of it (whole nodes)."
            yield ConfigError(f"cluster.links.{index}.num_devices", extent, problem, remedy)
    if extents[-1] <= per_node < total:
        yield f"cluster.links has none between the {num_nodes} nodes: the last one inside a node is taken for it."
    elif extents[-1] < total:
        last = f"cluster.links.{len(extents) - 1}.num_devices = {extents[-1]}"
        yield f"{last} does not reach all {total} devices: the same link is taken for those beyond."


def _doubts_of_device(cluster: Tree) -> Iterator[str]:
    source = str(part_at(cluster, "device.memory_source"))
    if source.startswith(PLACEHOLDER):
        yield f"the figures of device {part_at(cluster, 'device.name')} are {source}. Until then no prediction holds."


def _links(cluster: Tree) -> list[dict[str, Any]]:
    links = cluster.get("links")
    return [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []


def _within(value: float, extent: tuple[float, float]) -> bool:
    return extent[0] <= value <= extent[1]
