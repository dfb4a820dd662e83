"""The number of devices that a sweep takes by default: as many as its layouts and its batch divide."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from conf.compose.load import Composition, validate
from conf.compose.tree import Tree, value_at, with_values
from conf.types.cluster_spec import ClusterSpec
from conf.types.sweep_spec import PointSet
from sweeps.points.axes import MODEL_PARALLEL, Point, every_point

WORLD_SIZE = "parallel.world_size"
MOST_LOOKED_AT = 2_000
"""Points of a large grid that are enough to tell which number of devices suits it."""


def on_suiting_devices(asked: Composition, points: PointSet, *, whole_grid: bool) -> Composition:
    """The configuration with as many devices as suit most points; as it is where their number was asked for.

    A file that states a number keeps it wherever the cluster has so many.

    Args:
        whole_grid: the points on the axes count too; else only the baseline and the listed points.
    """
    stated = value_at(asked.tree, WORLD_SIZE)
    if WORLD_SIZE in asked.overrides.pinned_keys() or asked.tree.get("mixed") is not None:
        return asked
    cluster = validate(ClusterSpec, asked.tree.get("cluster") or {}, "cluster.")
    if isinstance(stated, int) and cluster.can_give(stated):
        return asked
    most = min(stated, cluster.num_devices) if isinstance(stated, int) else cluster.num_devices
    pinned = {key: value_at(asked.tree, key) for key in asked.overrides.pinned_keys()}
    open_points = [
        point
        for point in islice(every_point(points, asked.tree, pinned, whole_grid=whole_grid), MOST_LOOKED_AT)
        if WORLD_SIZE not in point
    ]
    size = _largest_suiting(open_points, asked.tree, cluster, most)
    if size is None or size == stated or (stated is None and size == cluster.num_devices):
        return asked
    return Composition(asked.overrides, with_values(asked.tree, {WORLD_SIZE: size}))


def _largest_suiting(points: Sequence[Point], tree: Tree, cluster: ClusterSpec, most: int) -> int | None:
    """The largest number of devices, up to a bound, on which most points divide; None where none divides anywhere."""
    # A part of a node is no answer to somebody who has named a machine of many.
    step = cluster.devices_per_node if most >= cluster.devices_per_node and cluster.num_nodes > 1 else 1
    sizes = np.arange(step, most + 1, step)
    if not points or not len(sizes):
        return None
    suited = sum((_divides(point, tree, sizes).astype(int) for point in points), np.zeros(len(sizes), int))
    return int(sizes[suited == suited.max()][-1]) if suited.max() else None


def _divides(point: Point, tree: Tree, sizes: npt.NDArray[np.int_]) -> npt.NDArray[np.bool_]:
    """Mark the numbers of devices of which the layout leaves no device over and the batch no sequence."""

    def at(key: str) -> int:
        value = point.get(key, value_at(tree, key))
        return value if isinstance(value, int) and value > 0 else 1

    model_parallel = int(np.prod([at(name) for name in MODEL_PARALLEL]))
    replicas = np.maximum(sizes // model_parallel, 1)
    fed = at("batch.global_batch_size") % (at("batch.micro_batch_size") * replicas) == 0
    return np.asarray((sizes % model_parallel == 0) & fed)
