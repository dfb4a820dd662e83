"""Seconds of collectives and transfers on the link tiers that a group of ranks really crosses.

Each takes a latency and its bytes over a bandwidth, which is known as the alpha-beta model.

A group is `num_ranks` ranks, `stride` apart in the order of devices. Its ring passes through a tier once for every
block of the tier below, and the members inside that lower block bring their ports along, so that a ring over nodes
runs at (members in a node) x (bandwidth of a device's port), or fewer ports where those were measured (`ring_ports`). A
node that the group does not fill has fewer members, and every ring passes through it. Source: the multi-ring
construction of NCCL and RCCL. Without a switch, as between the GPUs of
an AMD node, a device's bandwidth is divided over wires to each of the others, and a small group uses only some of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from conf.types.cluster_spec import LinkSpec
from costs.setting import Floats, Integers, Setting

SHOWN_BY_PACE = 0.5
"""Share of what a hidden collective costs that is in proportion to its pace. Half is a guess, between what only holds
multiprocessors and what only takes memory bandwidth; leaving sources out prefers it to either (docs/cost-model.md)."""


class Runs(NamedTuple):
    """Groups whose ranks are not evenly spaced: runs of `length` ranks, the runs `jump` devices apart."""

    length: Integers
    jump: Integers


@dataclass(frozen=True, slots=True)
class PricedRing:
    """The rings of groups, in columns.

    Attributes:
        bandwidth: bytes per second of the slowest tier on the way.
        latency_seconds: of one pass around.
        start_seconds: of a collective before anything moves; on a CPU no kernel starts.
    """

    num_ranks: Integers
    bandwidth: Floats
    latency_seconds: Floats
    start_seconds: Floats

    def pass_seconds(self, num_bytes: Floats) -> Floats:
        """One pass around: what a gather takes without its start, as where devices copy by themselves."""
        return self.latency_seconds + num_bytes * (self.num_ranks - 1) / self.num_ranks / self.bandwidth

    def gather_seconds(self, num_bytes: Floats) -> Floats:
        """An all-gather or a reduce-scatter of `num_bytes` in all: (n-1)/n of them pass every rank."""
        return self.start_seconds + self.pass_seconds(num_bytes)

    def all_reduce_seconds(self, num_bytes: Floats) -> Floats:
        """An all-reduce of `num_bytes`: a reduce-scatter and a gather by one kernel, so that they pass around twice."""
        return self.start_seconds + 2.0 * self.pass_seconds(num_bytes)


def ring_of(setting: Setting, num_ranks: Integers, stride: Integers, runs: Runs | None = None) -> PricedRing:
    """The ring of each group of `num_ranks` ranks, `stride` apart or in `runs`."""
    find = _evenly_spaced if runs is None else partial(_in_runs, runs=runs)
    return PricedRing(num_ranks, *find(setting, num_ranks, stride), _start_seconds(setting, num_ranks))


def quick_ring_of(setting: Setting, num_ranks: Integers) -> PricedRing:
    """As if bytes alone took time, and all of them passed at the pace of a device's fastest link."""
    fastest = setting.cluster.links[0].bandwidth_bytes_per_second * setting.cluster.efficiency.link
    return PricedRing(num_ranks, np.asarray(fastest), np.asarray(0.0), np.asarray(0.0))


def _evenly_spaced(setting: Setting, num_ranks: Integers, stride: Integers) -> tuple[Floats, Floats]:
    """Bandwidth and latency. Groups of the same size and stride share one computation: a search has few such groups."""
    ranks, strides = np.broadcast_arrays(num_ranks, stride)
    if ranks.size == 1:
        bandwidth, latency = _ring(setting, ranks.item(), strides.item())
        return np.full(ranks.shape, bandwidth), np.full(ranks.shape, latency)
    # Size and stride are packed into one integer, since `np.unique` is much faster on those than on pairs.
    bound = int(strides.max()) + 1
    keys, index = np.unique(ranks * bound + strides, return_inverse=True)
    rings = np.array([_ring(setting, *divmod(key, bound)) for key in keys.tolist()])[index.reshape(ranks.shape)]
    return rings[..., 0], rings[..., 1]


def _in_runs(setting: Setting, num_ranks: Integers, stride: Integers, runs: Runs) -> tuple[Floats, Floats]:
    columns = np.broadcast_arrays(num_ranks, stride, *runs)
    by_key = {key: _ring(setting, *key) for key in set(zip(*(each.ravel().tolist() for each in columns), strict=True))}
    listed = [by_key[key] for key in zip(*(each.ravel().tolist() for each in columns), strict=True)]
    both = np.array(listed).reshape((*columns[0].shape, 2))
    return both[..., 0], both[..., 1]


def _ring(setting: Setting, num_ranks: int, stride: int, run: int = 0, jump: int = 0) -> tuple[float, float]:
    """Bandwidth and latency for one group. The widest tier also spans whatever is wider than all tiers.

    Args:
        run, jump: as in `Runs`; 0 where all members are evenly spaced.
    """
    slowest, latency, inside, below = inf, 0.0, 1, 1
    widest = setting.cluster.links[-1]
    for link in setting.cluster.links:
        block = link.num_devices
        # Of the group's ranks a block has as many as are `stride` apart in it, of one run or of the several that fit
        # in.
        near = min(run or num_ranks, max(1, block // stride))
        members = num_ranks if link is widest else min(num_ranks, near * max(1, block // jump if jump else 1))
        if members > inside:
            ports = members % inside or inside  # members in the emptiest block, where one fills after the other
            ports = min(ports, link.ring_ports or ports)
            blocks = -(-members // inside)
            reached = _reached_share(link, blocks, link.num_devices // below) / _taper(setting, below, blocks)
            bandwidth = link.bandwidth_bytes_per_second * setting.cluster.efficiency.link * ports * reached
            slowest = min(slowest, float(bandwidth))
            # A ring hops from each block of the tier below to the next, in every block of this tier.
            hops = (blocks - 1) * -(-num_ranks // members)
            latency += setting.own_scale.latency * link.latency_seconds * hops
        inside, below = members, link.num_devices
    return slowest, latency


def _reached_share(link: LinkSpec, num_blocks: Floats | int, all_blocks: int) -> Floats | float:
    """Share of a device's bandwidth in a tier that leads to the blocks which a group fills."""
    if not link.mesh:
        return 1.0
    is_part = (num_blocks > 1) & (num_blocks < all_blocks)
    return np.where(is_part, (num_blocks - 1) / max(all_blocks - 1, 1), 1.0)


def _taper(setting: Setting, below: int, num_blocks: Floats | int) -> Floats | float:
    """By how much a tier is slower for so many blocks of the tier below, which spans so many devices.

    Only networks between nodes taper, by a share for every doubling of the blocks. A switch that ranks of several nodes
    share, as in an NVL72 rack, is none: each device has its own port there.
    """
    return 1.0 + setting.own_scale.taper * np.log2(num_blocks) if below >= setting.cluster.devices_per_node else 1.0


def _start_seconds(setting: Setting, num_ranks: Integers) -> Floats:
    start = setting.own_scale.start if setting.cluster.device.kind == "gpu" else 0.0
    return (num_ranks > 1) * start


def exchange_seconds(
    setting: Setting, num_bytes: Floats, num_ranks: Integers, stride: Integers, top_k: int | None = None
) -> Floats:
    """An all-to-all, in which every rank has `num_bytes` in all, an equal part of them for each rank.

    The parts for ranks of the same node pass inside it while those for others leave it, each through the port of its
    own device; the slower of the two decides.

    Args:
        top_k: copies of one token among the bytes, of which each block of ranks gets one from outside and passes it on
            to its own ranks (DeepEP: arXiv 2412.19437, section 3.2.2); None sends every copy on its own. Copies are
            spread evenly, so that b blocks get `b (1 - (1 - 1/b) ** top_k)` of them.
    """
    slowest, latency, inside = np.zeros(np.shape(num_bytes)), np.zeros(np.shape(num_bytes)), np.ones_like(num_ranks)
    below, widest = 1, setting.cluster.links[-1]
    for link in setting.cluster.links:
        members = num_ranks if link is widest else np.minimum(num_ranks, np.maximum(1, link.num_devices // stride))
        blocks = members / inside
        reached = _reached_share(link, blocks, link.num_devices // below) / _taper(setting, below, blocks)
        bandwidth = link.bandwidth_bytes_per_second * setting.cluster.efficiency.link * reached
        # The parts for ranks of this tier's block, less those for the block of the tier below.
        share = (members - inside) / num_ranks
        if top_k is not None:
            parts = num_ranks / inside
            share = parts * (1.0 - (1.0 - 1.0 / parts) ** top_k) / top_k * (members - inside) / members
        slowest = np.maximum(slowest, num_bytes * share / bandwidth)
        latency = np.where(members > inside, link.latency_seconds, latency)
        inside, below = members, link.num_devices
    start = _start_seconds(setting, num_ranks) if top_k is None else 0.0
    return slowest + latency + start


def pair_seconds(setting: Setting, num_bytes: Floats, num_devices: Integers) -> Floats:
    """An all-reduce between the two ends of `num_devices` consecutive devices: half of the bytes either way, twice."""
    links = setting.cluster.links
    tier = np.minimum(np.searchsorted([link.num_devices for link in links], num_devices), len(links) - 1)
    below = (1, *(link.num_devices for link in links[:-1]))
    paired = [_reached_share(link, 2, link.num_devices // size) for link, size in zip(links, below, strict=True)]
    bandwidths = [link.bandwidth_bytes_per_second * share for link, share in zip(links, paired, strict=True)]
    bandwidth = np.array(bandwidths)[tier] * setting.cluster.efficiency.link
    latency = setting.own_scale.latency * np.array([link.latency_seconds for link in links])[tier]
    # With two ranks a reduce-scatter and a gather move half of the bytes each, (n - 1) / n of them.
    return 2.0 * (latency + num_bytes / 2 / bandwidth)


def shown_seconds(
    setting: Setting, comm: Floats, hiding: Floats, overlap: Floats | float = 1.0, pace: Floats | float = 1.0
) -> Floats:
    """Return the seconds of a collective that computation beside it does not hide.

    Even the part that computation covers costs `Scale.shown` of itself, since it takes multiprocessors and memory
    bandwidth from the computation. It holds multiprocessors however slow its link is, but takes memory bandwidth only
    as fast as bytes arrive, so that `SHOWN_BY_PACE` of this cost is in proportion to its pace. On a CPU nothing covers
    it, because the ranks' own cores carry it out; nor where the host waits for every kernel.

    Args:
        hiding: seconds of the computation that can run beside it.
        overlap: share of the collective that the trainer starts early enough for that.
        pace: as in `pace_of`.
    """
    if setting.cluster.device.kind == "cpu" or setting.implementation.blocks_launches:
        return comm
    shown = setting.own_scale.shown * (1.0 - SHOWN_BY_PACE * (1.0 - pace))
    return comm - overlap * (1.0 - shown) * np.minimum(comm, hiding)


def pace_of(comm: Floats, quick: Floats) -> Floats:
    """Pace of collectives as a share of that of a device's fastest link, at most 1; latency, too, keeps bytes waiting.

    Args:
        comm: their seconds.
        quick: seconds of their bytes alone over the fastest link, as `quick_ring_of` gives them.
    """
    return np.minimum(1.0, quick / np.maximum(comm, np.finfo(np.float64).tiny))


def transfer_seconds(setting: Setting, num_bytes: Floats, stride: Integers) -> Floats:
    """A transfer from a device to the one `stride` further, while all others of the block make the same transfer."""
    pair = ring_of(setting, np.full_like(stride, 2), stride)
    return pair.latency_seconds + num_bytes / pair.bandwidth
