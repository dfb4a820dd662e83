"""The lessons of the trials about the prediction, in sentences: which terms cost more than predicted, or less."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

import numpy as np

from sweeps.search.layouts.memory_fit import MemoryFit
from sweeps.search.layouts.observed import Observed
from sweeps.search.layouts.surrogate import Surrogate
from train_core.costs.setting import Floats
from train_core.costs.terms import STEP_TERMS

NAMES = {
    "compute_seconds": "computation costs",
    "tensor_seconds": "tensor-parallel collectives cost",
    "pipeline_seconds": "transfers between stages cost",
    "bubble_seconds": "the pipeline's bubble costs",
    "data_seconds": "data-parallel collectives cost",
    "optimizer_seconds": "the optimizer costs",
}
SURPRISE = (
    "plans are off from what their terms explain by more than was expected, each in its own way: the search trusts the"
    " prediction less, and tries more of them"
)
FEWEST_TRIALS = 2
SURE = 2.0  # standard deviations from the prediction at which a difference is told
LEAST_RATIO = 0.05
NOTABLE = 0.05  # logarithm of the smallest factor that is told


def lessons(observed: Observed) -> list[str]:
    """A sentence for the whole step, for each term of which something is sure, and for memory."""
    numbers = observed.has_rate
    if len(numbers) < FEWEST_TRIALS:
        return []
    surrogate = Surrogate.fit(observed.measured_rates())
    surprise = [SURPRISE] if surrogate.is_surprised else []
    return [_of_step(observed), *_of_terms(surrogate, len(numbers)), *surprise, *_of_memory(observed)]


def _of_step(observed: Observed) -> str:
    seen = observed.measured_rates()
    ratios = np.exp(seen.log_seconds) / seen.priced.step_seconds
    return (
        f"measured steps take {np.median(ratios):.2f} x the prediction ({len(ratios)} trials,"
        f" {ratios.min():.2f} to {ratios.max():.2f})"
    )


def _of_terms(surrogate: Surrogate, num_trials: int) -> Iterator[str]:
    mean, spread = surrogate.terms()
    for number, name in enumerate(STEP_TERMS):
        if name in NAMES and abs(mean[number]) > max(NOTABLE, SURE * spread[number]):
            low, high = (exp(mean[number] + side * spread[number]) for side in (-1, 1))
            yield (
                f"{NAMES[name]} {exp(mean[number]):.2f} x the prediction"
                f" (between {low:.2f} and {high:.2f}, from {num_trials} trials)"
            )


def _of_memory(observed: Observed) -> Iterator[str]:
    seen = observed.memory()
    if not len(seen.ratios):
        return
    mean, _ = MemoryFit.fit(seen).ratio(seen.plans)
    ratio = exp(_middle(mean))
    # Less than this is measured only where a process on a CPU needs less than what is set aside for its framework.
    if ratio >= LEAST_RATIO:
        yield f"plans need {ratio:.2f} x the predicted memory ({len(seen.ratios)} trials)"


def _middle(values: Floats) -> float:
    return float(np.median(values))
