"""The batch and the precision of a search for which nobody gave one: those of a usual training on GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from conf.cluster_spec import ClusterSpec
from conf.folders import is_own, path_of
from conf.load import Composition, load_cluster
from conf.tree import value_at

TOKENS = 3 * 2**20
"""Tokens of a step: those of GPT-3 175B, 1,536 sequences of 2,048 (arXiv 2005.14165). Factors of two and three suit the
numbers of devices that clusters have."""
BATCH = "batch.global_batch_size"


def usual_overrides(asked: Composition, clusters: Sequence[str] = ()) -> list[str]:
    """Return overrides for a command that names only a model and GPUs: the defaults suit a try on a laptop.

    Args:
        clusters: those that the search chooses among, in place of the configured one.

    Returns:
        Overrides, such as `precision=bf16`; none for what was given, and none for a sweep, which states its own.
    """
    given = asked.overrides
    places_given = bool(clusters) or bool(given.of({"cluster"}).entries)
    if given.chosen("sweep") is not None or not (places_given and given.of({"model"}).entries):
        return []
    places = [load_cluster(name) for name in clusters] or [asked.settings.cluster]
    if any(place.device.kind != "gpu" for place in places):
        return []
    added: list[str] = []
    dtype = _sixteen_bits(places)
    if dtype is not None and not given.of({"precision"}).entries and not _has_own_default("precision", "fp32"):
        added.append(f"precision={dtype}")
    named = given.chosen("batch") is not None or given.chosen(BATCH) is not None
    length = value_at(asked.tree, "model.seq_length")
    if not named and isinstance(length, int) and not _has_own_default("batch", "default"):
        added.append(f"{BATCH}={3 * 2 ** max(0, round(math.log2(TOKENS / 3 / length)))}")
    return added


def _sixteen_bits(places: Sequence[ClusterSpec]) -> str | None:
    """The type of two bytes that all of them compute in; bf16 needs no scaling of the loss, so it comes first."""
    return next((dtype for dtype in ("bf16", "fp16") if all(dtype in each.device.dtypes for each in places)), None)


def _has_own_default(group: str, option: str) -> bool:
    path = path_of(group, option)
    return path is not None and is_own(path)
