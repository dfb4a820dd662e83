"""Whether the memory that a run held can be that of the recomputation that its row says."""

from __future__ import annotations

from dataclasses import replace

from conf.plan.setup import Setup
from conf.types.recompute import Recompute
from conf.units import GIBIBYTE
from costs import estimates
from sweeps.memory_odds import MemoryOdds
from sweeps.table.prices import RowPrediction

RARE = 0.01
"""A measurement is doubted where fewer runs of its mode than this share hold as little, or as much."""
MODES: dict[Recompute, str] = {
    "none": "no recomputation",
    "selective": "selective recomputation",
    "full": "full recomputation",
}


def recompute_doubt(prediction: RowPrediction, held_bytes: float, *, is_allocated: bool) -> str:
    """A sentence where the measured bytes contradict the row's recomputation, and fit another mode; else empty.

    Args:
        is_allocated: the bytes are what the allocator gave out, without what the framework reserves beside it.
    """
    configuration, parallel = prediction.configuration, prediction.configuration.setup.parallel
    odds = MemoryOdds.of(configuration.implementation.name, parallel.world_size)

    def may_be(predicted_bytes: int) -> bool:
        return RARE <= odds.likelihood(predicted_bytes, held_bytes) <= 1 - RARE

    own = _bytes(prediction, is_allocated)
    # Rows name too many kinds of selective recomputation for their memory to say which.
    if not configuration.models_memory or parallel.recompute not in ("none", "full") or may_be(own):
        return ""
    others = [name for name in MODES if name != parallel.recompute]
    found = [replace(configuration, setup=_with_mode(prediction, name)) for name in others]
    prices = estimates([(each.setup, each.implementation) for each in found])
    needed = {
        name: _bytes(RowPrediction(each, price), is_allocated)
        for name, each, price in zip(others, found, prices, strict=True)
    }
    likely = [name for name in others if may_be(needed[name])]
    if not likely:
        return ""
    nearest = min(likely, key=lambda name: abs(needed[name] / held_bytes - 1))
    needs = f"{MODES[nearest]} needs {needed[nearest] / GIBIBYTE:,.1f}"
    much = f"{held_bytes / GIBIBYTE:,.1f} GiB are held, where recompute = {parallel.recompute} needs"
    return f"{much} {own / GIBIBYTE:,.1f}; {needs}"


def _bytes(prediction: RowPrediction, is_allocated: bool) -> int:
    return prediction.allocated_bytes if is_allocated else prediction.memory_bytes


def _with_mode(prediction: RowPrediction, mode: Recompute) -> Setup:
    setup = prediction.configuration.setup
    parallel = setup.parallel.model_copy(update={"recompute": mode, "recompute_every": 1})
    return setup.model_copy(update={"parallel": parallel})
