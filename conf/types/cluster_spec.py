"""Facts about machines, with their units: devices, links, sites and clusters. Nothing here is a choice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.errors import ConfigError
from conf.types.schema import Count, Dtype, Fraction, Frozen, MatmulRecipe, Name, NonNegative, Positive

MOST_NODES = 10**6
"""Far above any machine, and few enough to try every number of them."""
MatmulDtype = Literal[Dtype, "fp8", "fp4"]


def narrow_dtype(recipe: MatmulRecipe) -> Literal["fp8", "fp4"]:
    """The type that products of a recipe are in, as devices name their peaks."""
    return "fp4" if recipe == "nvfp4" else "fp8"


class DeviceSpec(Frozen):
    """One schedulable accelerator (one MI250X GCD, not the card), or one CPU rank: what its maker states.

    Attributes:
        name: what people call it, in reports too.
        kind: what the trainer runs on; `cpu` means gloo, `gpu` NCCL or RCCL.
        peak_flops_per_second: dense peak by precision; `fp8` and `fp4` are types of matrix products alone.
        peak_source: where the peak comes from; `measured` means that the trainer measures it in the same run, and the
            numbers given here serve only the prediction.
        memory_bytes: what one device has.
        memory_bandwidth_bytes_per_second: the highest that its maker states.
        memory_source: where both come from.
        num_multiprocessors: units that each compute one tile of a matrix product at a time (SMs, CUs; 1 on a CPU rank).
        watts: design power of one device.
        watts_source: where they come from.
        price_per_hour: US dollars for one device-hour; null if no price is known.
        price_source: where and when it was listed.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    peak_flops_per_second: dict[MatmulDtype, Positive]
    peak_source: str
    memory_bytes: Count
    memory_bandwidth_bytes_per_second: Positive
    memory_source: str
    num_multiprocessors: Count
    watts: Positive
    watts_source: str
    price_per_hour: Positive | None
    price_source: str

    @property
    def maker(self) -> Literal["nvidia", "amd"] | None:
        """The maker whose driver a container of its jobs needs; None for a CPU, and where that needs no option."""
        if self.kind == "cpu" or self.name.startswith("Intel"):
            return None
        return "amd" if self.name.startswith("MI") else "nvidia"

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """Types of weights and activations that the device computes in, sorted."""
        known: tuple[Dtype, ...] = ("bf16", "fp16", "fp32")
        return tuple(dtype for dtype in known if dtype in self.peak_flops_per_second)


class LinkSpec(Frozen):
    """A connection between blocks of `num_devices` consecutive devices.

    Attributes:
        name: what people call it, such as nvlink.
        num_devices: consecutive devices that it connects.
        bandwidth_bytes_per_second: per device and direction, when all devices of the block communicate, as stated by
            the maker.
        latency_seconds: of one message.
        mesh: blocks of the tier below are wired in pairs, without a switch, so that a group that fills n of N blocks
            uses (n-1)/(N-1) of the bandwidth.
        ring_ports: the most ports of a node through which a ring leaves it, as `calibrate` measures them; null where
            nobody did, which is priced as all ports of the ring's members.
    """

    name: str
    num_devices: Count
    bandwidth_bytes_per_second: Positive
    latency_seconds: NonNegative
    mesh: bool = False
    ring_ports: Count | None = None


class FittedRuns(Frozen):
    """The runs that constants were fitted to: how far to trust predictions near them.

    Attributes:
        left_out_error: mean absolute error of their steps, each predicted by a fit to the others.
        trainers: names of what ran them, with commas between; empty where later changes of constants made them void.
        most_devices: of the run on most of them.
        num_runs: how many they were; 0 where a file of an earlier release does not say it.
    """

    left_out_error: NonNegative
    trainers: str
    most_devices: Count
    num_runs: Annotated[int, Field(ge=0)] = 0


class OwnLevel(Frozen):
    """The level of runs of a cluster's own: what they took, over what was predicted.

    Attributes:
        factor: on every prediction for their trainer.
        num_runs: how many runs it rests on.
        is_applied: the cluster's rates were divided by it already, see `ClusterSpec.at_pace_of`.
    """

    factor: Positive
    num_runs: Count
    is_applied: bool = False


class EfficiencySpec(Frozen):
    """The constants of the cost model that no data sheet states; `calibrate` measures or fits them.

    Attributes:
        matmul: share of the peak that large, well-shaped matrix products reach in training.
        attention: share of the peak that a fused (flash) attention kernel reaches.
        memory: share of the memory bandwidth that memory-bound kernels reach.
        link: share of a link's bandwidth that collectives and transfers reach.
        kernel_seconds: what every kernel costs on top of its work: launch, ramp-up and tail.
        source: on what each was fitted or measured; published rows that were fitted are no test of the prediction.
        link_source: the same of `link`.
        shown, latency, slowest, taper, start: as in `costs.setting`, whose values hold unless given here.
        launch: factor on what its hosts need to launch kernels and collectives, by what the trainer's usually need.
        runs: what constants were fitted to by `calibrate`; null where no run of the cluster's own was.
        levels: by trainer, what few runs of the cluster's own say of all of its predictions.
    """

    matmul: Fraction
    attention: Fraction
    memory: Fraction
    link: Fraction
    kernel_seconds: NonNegative
    source: str
    link_source: str = ""
    shown: Annotated[float, Field(ge=0, le=1)] | None = None
    latency: NonNegative | None = None
    slowest: NonNegative | None = None
    taper: NonNegative | None = None
    start: NonNegative | None = None
    launch: Positive = 1.0
    runs: FittedRuns | None = None
    levels: dict[str, OwnLevel] = Field(default_factory=dict)

    @cached_property
    def own_scale(self) -> Mapping[str, float]:
        """Those constants of scale that this cluster has of its own."""
        stated = {name: getattr(self, name) for name in ("shown", "latency", "slowest", "taper", "start")}
        return {name: value for name, value in stated.items() if value is not None}


class SiteSpec(Frozen):
    """The price and carbon of electricity where the cluster stands. Nothing is assumed where nothing is declared.

    Attributes:
        grid_co2_grams_per_kwh: what the grid emits for a kilowatt-hour; null leaves carbon out.
        grid_co2_source: where that is from, and of which year.
        power_usage_effectiveness: what the whole site draws over what its computers draw (PUE); null counts the
            computers alone.
        power_usage_effectiveness_source: where that is from.
    """

    grid_co2_grams_per_kwh: NonNegative | None = None
    grid_co2_source: str = ""
    power_usage_effectiveness: Annotated[float, Field(ge=1)] | None = None
    power_usage_effectiveness_source: str = ""

    def grams_co2(self, kwh: float) -> float | None:
        """Grams of CO2 for energy that computers draw, with what the site adds where that is declared.

        None where the grid's emission is not declared.
        """
        if self.grid_co2_grams_per_kwh is None:
            return None
        return kwh * (self.power_usage_effectiveness or 1.0) * self.grid_co2_grams_per_kwh


class ClusterSpec(Frozen):
    """Nodes of equal devices. `links` go from the closest tier to the widest, which also spans whatever is wider.

    Attributes:
        name: the name of its file.
        num_nodes: nodes that a job may take.
        devices_per_node: devices of each of them.
        cores_per_node: on a CPU, the cores that the ranks of a node share; null gives every rank a device of its own.
        gpu_names: what tables of configurations call this cluster's device (the `gpu` column of `trisweep estimate`).
        device: what its maker states of one device.
        efficiency: the share of that which programs reach.
        reserved_memory_bytes: bytes that the framework and the collectives library take on each device.
        fragmentation: share of the bytes of activations that is lost to gaps in the allocator.
        reserved_memory_source: where both come from.
        links: what connects the devices, from the closest tier to the widest.
        host_bytes_per_second: what one device's share of the host moves while it updates offloaded weights; the usual
            value is assumed, for a PCIe 4.0 x16 slot.
        site: where the cluster stands.
    """

    name: Name
    num_nodes: Annotated[int, Field(gt=0, le=MOST_NODES)]
    devices_per_node: Count
    cores_per_node: Count | None
    gpu_names: Annotated[tuple[str, ...], Field(strict=False)]
    device: DeviceSpec
    efficiency: EfficiencySpec
    reserved_memory_bytes: Annotated[int, Field(ge=0)]
    fragmentation: NonNegative
    reserved_memory_source: str
    links: Annotated[tuple[LinkSpec, ...], Field(min_length=1, strict=False)]
    host_bytes_per_second: Positive = 25e9
    site: SiteSpec = SiteSpec()

    def at_pace_of(self, trainer: str) -> ClusterSpec:
        """The same cluster, as much slower as its own runs of a trainer were: whatever takes time takes more of it."""
        level = self.efficiency.levels.get(trainer)
        if level is None or level.is_applied:
            return self
        own, factor = self.efficiency, level.factor
        slower = {name: getattr(own, name) / factor for name in ("matmul", "attention", "link")}
        slower |= {name: getattr(own, name) * factor for name in ("kernel_seconds", "launch")}
        applied = {**own.levels, trainer: level.model_copy(update={"is_applied": True})}
        memory = self.device.memory_bandwidth_bytes_per_second / factor
        latencies = [{"latency_seconds": link.latency_seconds * factor} for link in self.links]
        return self.model_copy(
            update={
                "device": self.device.model_copy(update={"memory_bandwidth_bytes_per_second": memory}),
                "efficiency": own.model_copy(update={**slower, "levels": applied}),
                "links": tuple(link.model_copy(update=each) for link, each in zip(self.links, latencies, strict=True)),
                "host_bytes_per_second": self.host_bytes_per_second / factor,
            }
        )

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    @property
    def joined_devices(self) -> int:
        """How many devices are joined as those of a node are: those of a rack, where the widest link is another."""
        inside = [link.num_devices for link in self.links[:-1]]
        return max(self.devices_per_node, *inside) if inside else self.devices_per_node

    @property
    def link_between_nodes(self) -> LinkSpec | None:
        """The first link that reaches beyond a node; None where none does."""
        return next((link for link in self.links if link.num_devices > self.devices_per_node), None)

    def with_fewest_ports(self) -> ClusterSpec | None:
        """As if a ring left a node through one port, as on many machines; None where how many it gets is known.

        It is where somebody measured it, on CPUs, and where a node has one device.
        """
        unknown = [link.num_devices > self.devices_per_node > 1 and link.ring_ports is None for link in self.links]
        if self.device.kind == "cpu" or not any(unknown):
            return None
        pairs = zip(self.links, unknown, strict=True)
        links = (link.model_copy(update={"ring_ports": 1}) if is_unknown else link for link, is_unknown in pairs)
        return self.model_copy(update={"links": tuple(links)})

    def can_give(self, num_devices: int) -> bool:
        """True if a job can have so many of its devices: a part of one node, or whole nodes."""
        fills_nodes = num_devices <= self.devices_per_node or num_devices % self.devices_per_node == 0
        return 0 < num_devices <= self.num_devices and fills_nodes

    @model_validator(mode="after")
    def _links_widen(self) -> ClusterSpec:
        # The cost model finds a tier by bisection, and takes the last one for the widest.
        extents = [link.num_devices for link in self.links]
        if extents != sorted(set(extents)):
            problem = "num_devices must grow from tier to tier"
            raise ConfigError("cluster.links", extents, problem, "List the closest tier first.")
        return self
