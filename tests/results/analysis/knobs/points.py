"""Points of a made-up machine on which it is known what each knob does. Nothing here was measured."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import product

from results.analysis.knobs.table import KnobPoint, KnobTable, RatesAre

NOISE = 0.02


def points(seed: int = 1, keep: float = 0.7) -> Iterator[KnobPoint]:
    """Micro-batch size matters most, then tensor size, then pipeline stages; ZeRO does nothing."""
    draw = random.Random(seed)
    for micro, tensor, pipeline, zero in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4), (0, 1)):
        if draw.random() > keep:
            continue
        speed = (1 + 0.3 * math.log2(micro)) * (1 - 0.1 * math.log2(tensor)) * (1 - 0.03 * math.log2(pipeline))
        settings = {
            "micro_batch_size": micro,
            "tensor_parallel_size": tensor,
            "pipeline_parallel_size": pipeline,
            "zero_stage": zero,
            "world_size": 64,
        }
        fits = micro < 8 or tensor > 1
        yield KnobPoint(settings, 100e12 * speed * math.exp(draw.gauss(0, NOISE)) if fits else None)


def table(rates_are: RatesAre = "measured", seed: int = 1, keep: float = 0.7) -> KnobTable:
    return KnobTable(rates_are, tuple(points(seed, keep)))
