"""The values of a cluster file that follow from measured rates, and those that have to stay as they were.

The source of each value is written into the file too:

    `matmul: fitted to 9 trials ...; link: measured by trisweep calibrate, ...; before: assumptions`
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from calibrate.cluster_file import LINKS, Change, KeyPath, value_in
from conf.types.cluster_spec import ClusterSpec
from conf.units import count_of
from rates.link_fit import fit_link, fit_patterns
from rates.plan import ALL_PORTS, reference_dtype
from rates.record import DeviceRates, LinkTime, MeasuredSpread

PEAK_MEASURED = "measured"
"""The `device.peak_source` of a device without a data sheet, whose measured rates become its peaks."""


def measured_changes(cluster: ClusterSpec, rates: DeviceRates, stamp: str) -> list[Change]:
    """Every value that follows from `rates`; peaks and memory bandwidth only where there is no data sheet for them."""
    own_peak = cluster.device.peak_source == PEAK_MEASURED
    device = [*_peaks(cluster, rates), *_memory_bandwidth(cluster, rates, stamp)] if own_peak else []
    cores = [_cores(cluster, rates)] if rates.plan.kind == "cpu" else []
    shares = [_matmul(cluster, rates), _attention(cluster, rates), _memory(cluster, rates), _kernel(cluster, rates)]
    tiers = range(len(cluster.links))
    links = [
        change for index in tiers for change in (*_link(cluster, rates, index), *_ring_ports(cluster, rates, index))
    ]
    # Measured bandwidths are what collectives reach, so no share of them is taken any more.
    link = _link_constants(cluster) if links else []
    measured = [*shares, *link]
    how = f"measured by trisweep calibrate, {stamp}"
    words = source_after(cluster.efficiency.source, [change.leaf for change in measured], how)
    source = Change(("efficiency", "source"), None, words)
    # How near earlier runs came was said of the constants that are now replaced.
    void = [] if cluster.efficiency.runs is None else [Change(("efficiency", "runs", "trainers"), None, "")]
    return [*cores, *measured, source, *void, *device, *links]


def unmeasured_notes(cluster: ClusterSpec, rates: DeviceRates) -> list[str]:
    measured = {time.link for time in rates.link_times}
    ranks, nodes = rates.plan.world_size, len(rates.hostnames)
    job = f"{ranks} rank{'s' * (ranks > 1)} on {nodes} host{'s' * (nodes > 1)}"
    unreached = [link.name for link in cluster.links if link.name not in measured]
    words = [f"link {name}: left as it was, because no two of the {job} meet only through it" for name in unreached]
    return [*words, "reserved memory: left as it was; no short measurement shows it"]


def machine_of(rates: DeviceRates) -> str:
    """Say where and with which versions it was measured, for the line at the top of the file."""
    it = rates.environment
    hosts = rates.hostnames
    named = hosts if len(hosts) <= 4 else (*hosts[:3], f"{len(hosts) - 3} more")
    ranks, cores = count_of(rates.plan.world_size, "rank"), count_of(it.num_cores, "core")
    return (
        f"{', '.join(named)} ({it.device}, {ranks}, {cores} a host), torch"
        f" {it.torch_version}, Python {it.python_version}, {it.backend}; medians of {rates.plan.num_samples} samples"
    )


def _large_rates(rates: DeviceRates, dtype: str) -> list[MeasuredSpread]:
    return [rate.flops_per_second for rate in rates.products if rate.dtype == dtype and rate.is_large]


def _peak(cluster: ClusterSpec, rates: DeviceRates, dtype: str) -> float:
    """The peak that efficiencies are shares of: the data sheet's, else the rate of the fastest large product."""
    if cluster.device.peak_source == PEAK_MEASURED:
        return max(spread.median for spread in _large_rates(rates, dtype))
    return {str(name): peak for name, peak in cluster.device.peak_flops_per_second.items()}[dtype]


def _peaks(cluster: ClusterSpec, rates: DeviceRates) -> list[Change]:
    return [
        _change(
            cluster,
            ("device", "peak_flops_per_second", dtype),
            _peak(cluster, rates, dtype),
            f"measured: the fastest of {len(_large_rates(rates, dtype))} large products in {dtype}",
            _large_rates(rates, dtype),
        )
        for dtype in rates.plan.dtypes
    ]


def _matmul(cluster: ClusterSpec, rates: DeviceRates) -> Change:
    """The share of the peak that matrix products reach: large ones, or where large ones set the peak all shapes."""
    dtype = reference_dtype(rates.plan.kind, rates.plan.dtypes)
    own_peak = cluster.device.peak_source == PEAK_MEASURED
    chosen = [rate for rate in rates.products if rate.dtype == dtype and (own_peak or rate.is_large)]
    origin = f"measured: median of {len(chosen)} {'' if own_peak else 'large '}products in {dtype} over the peak"
    return _share_of_peak(cluster, rates, "matmul", origin, [rate.flops_per_second for rate in chosen])


def _attention(cluster: ClusterSpec, rates: DeviceRates) -> Change:
    dtype = reference_dtype(rates.plan.kind, rates.plan.dtypes)
    chosen = [rate.flops_per_second for rate in rates.attentions if rate.dtype == dtype]
    origin = f"measured: median of {len(chosen)} causal shapes in {dtype}, forward and backward, over the peak"
    return _share_of_peak(cluster, rates, "attention", origin, chosen)


def _share_of_peak(
    cluster: ClusterSpec, rates: DeviceRates, name: str, origin: str, spreads: Sequence[MeasuredSpread]
) -> Change:
    peak = _peak(cluster, rates, reference_dtype(rates.plan.kind, rates.plan.dtypes))
    share = statistics.median(spread.median for spread in spreads) / peak
    return _change(cluster, ("efficiency", name), min(1.0, share), origin, spreads, 1 / peak)


def _memory(cluster: ClusterSpec, rates: DeviceRates) -> Change:
    path: KeyPath = ("efficiency", "memory")
    if cluster.device.peak_source == PEAK_MEASURED:
        return _change(cluster, path, 1.0, "measured: the bandwidth of this file is a measured one", [])
    stated = cluster.device.memory_bandwidth_bytes_per_second
    bandwidth, spreads = _memory_bandwidth_of(rates)
    origin = "measured: mean of copy and triad over the device's bandwidth"
    return _change(cluster, path, min(1.0, bandwidth / stated), origin, spreads, 1 / stated)


def _memory_bandwidth_of(rates: DeviceRates) -> tuple[float, list[MeasuredSpread]]:
    """The mean of copy and triad, and their ranges."""
    spreads = [rates.copy_bytes_per_second, rates.triad_bytes_per_second]
    return statistics.mean(spread.median for spread in spreads), spreads


def _memory_bandwidth(cluster: ClusterSpec, rates: DeviceRates, stamp: str) -> list[Change]:
    path: KeyPath = ("device", "memory_bandwidth_bytes_per_second")
    origin = "measured: mean of copy and triad, all ranks at once"
    how = f"measured by trisweep calibrate, {stamp}"
    source = source_after(cluster.device.memory_source, ["bandwidth"], how)
    bandwidth, spreads = _memory_bandwidth_of(rates)
    return [_change(cluster, path, bandwidth, origin, spreads), Change(("device", "memory_source"), None, source)]


def _kernel(cluster: ClusterSpec, rates: DeviceRates) -> Change:
    queued = f"{rates.plan.num_small_kernels} small kernels queued behind a large product"
    called = f"small layers, forward and backward, {rates.plan.kernels_per_layer} kernels each as the cost model counts"
    origin = f"measured: {queued if rates.plan.kind == 'gpu' else called}"
    return _change(
        cluster, ("efficiency", "kernel_seconds"), rates.kernel_seconds.median, origin, [rates.kernel_seconds]
    )


def _cores(cluster: ClusterSpec, rates: DeviceRates) -> Change:
    origin = "measured: cores that the ranks of a host may use"
    return _change(cluster, ("cores_per_node",), rates.cores_per_host, origin, [])


def _link(cluster: ClusterSpec, rates: DeviceRates, index: int) -> list[Change]:
    """The changes of one tier; if not measured, it keeps what collectives reach, as `efficiency.link` becomes 1."""
    link, share = cluster.links[index], cluster.efficiency.link
    times = [time for time in rates.link_times if time.link == link.name]
    if link.mesh:  # without a switch, groups smaller than the largest use only some of the wires
        largest = max((time.num_ranks for time in times), default=0)
        times = [time for time in times if time.num_ranks == largest]
    bandwidth: KeyPath = (LINKS, index, "bandwidth_bytes_per_second")
    if times:
        return _measured_link(cluster, index, times)
    if not rates.link_times or share == 1:
        return []
    origin = f"kept: not measured; {link.bandwidth_bytes_per_second:.4g} x the efficiency.link of {share:g} until now"
    return [_change(cluster, bandwidth, link.bandwidth_bytes_per_second * share, origin, [])]


def _measured_link(cluster: ClusterSpec, index: int, times: Sequence[LinkTime]) -> list[Change]:
    """Bandwidth and latency of a measured tier. Their range is that of the patterns, each fitted alone."""
    fit, patterns = fit_link(times), fit_patterns(times)
    groups = ", ".join(str(size) for size in sorted({time.num_ranks for time in times}))
    origin = (
        f"measured: median of {len(patterns)} patterns (collectives, transfers) in groups of {groups}, median error"
        f" {100 * fit.error:.0f} %"
    )
    return [
        Change(path, _present_value(cluster, path), getattr(fit, leaf), origin, min(values), max(values))
        for leaf in ("bandwidth_bytes_per_second", "latency_seconds")
        for path in [(LINKS, index, leaf)]
        for values in [[getattr(fit, leaf) for fit in patterns.values()]]
    ]


def _ring_ports(cluster: ClusterSpec, rates: DeviceRates, index: int) -> list[Change]:
    """The ports of a node that a ring gets: what one over all ranks reached over what one rank a node did."""
    name = cluster.links[index].name
    alone, whole = ([time for time in rates.link_times if time.link == each] for each in (name, name + ALL_PORTS))
    whole = [time for time in whole if time.pattern != "transfer"]
    if not (alone and whole):
        return []
    port, ring = (fit_link(times).bandwidth_bytes_per_second for times in (alone, whole))
    ports = min(cluster.devices_per_node, max(1, round(ring / port)))
    origin = f"measured: a ring over {whole[0].num_ranks} ranks reaches {ring / port:.1f} times what a port does"
    return [_change(cluster, (LINKS, index, "ring_ports"), ports, origin, [])]


def _link_constants(cluster: ClusterSpec) -> list[Change]:
    reached = "measured: the bandwidths of this file are what collectives reach"
    share = _change(cluster, ("efficiency", "link"), 1.0, reached, [])
    if cluster.device.kind == "cpu":
        return [share]
    started = "measured: the latencies of this file hold what a collective takes to start"
    return [share, _change(cluster, ("efficiency", "start"), 0.0, started, [])]


def _change(
    cluster: ClusterSpec,
    path: KeyPath,
    after: float | int,
    origin: str,
    spreads: Sequence[MeasuredSpread],
    scale: float = 1.0,
) -> Change:
    lowest = min((spread.lowest * scale for spread in spreads), default=None)
    highest = max((spread.highest * scale for spread in spreads), default=None)
    return Change(path, _present_value(cluster, path), after, origin, lowest, highest)


def _present_value(cluster: ClusterSpec, path: KeyPath) -> float | None:
    value = value_in(cluster, path)
    return float(value) if isinstance(value, int | float) else None


BEFORE = "; before: "
CLAUSE = re.compile(r"([a-z_]+(?:, [a-z_]+)*): (.*)")


def source_after(source: str, names: Sequence[str], how: str) -> str:
    """`source` once a calibration has set `names`: earlier clauses lose these names, the original source stays."""
    clauses_before, separator, original = source.rpartition(BEFORE)
    earlier = (_clause_without(clause, names) for clause in clauses_before.split("; ")) if separator else ()
    return "; ".join([f"{', '.join(names)}: {how}", *filter(None, earlier)]) + BEFORE + original


def _clause_without(clause: str, names: Sequence[str]) -> str:
    """The clause of the names that are left; empty when none is."""
    match = CLAUSE.fullmatch(clause)
    if match is None:
        return clause
    remaining = [name for name in match[1].split(", ") if name not in names]
    return f"{', '.join(remaining)}: {match[2]}" if remaining else ""
