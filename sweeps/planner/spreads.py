"""How layers are laid over the stages of a pipeline, and in which schedule: the layouts that a search tries."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

from conf.knobs import SCHEDULES
from sweeps.planner.divisors import divisors
from sweeps.planner.strategy import even_ends, spread_layers
from train_core.costs.step.schedule import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE

MOST_LAYERS_LIGHTER = 4
"""The first and the last stage are tried with up to this many layers less than an even spread gives them. What they
hold besides layers, embedding and head, weighs up to 2.6 layers in the models of conf/model (a Llama 3.1 8B's head)."""
GPIPE = SCHEDULES.index("gpipe")


class Layout(NamedTuple):
    """One way to lay the layers over the stages.

    Attributes:
        schedule: index into SCHEDULES.
        num_chunks: of a stage.
        chunk_layers: layers of the fullest chunk.
    """

    schedule: int
    num_chunks: int
    first_stage_layers: int
    last_stage_layers: int
    chunk_layers: int


def layer_ends(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Layers of the first and the last stage: even first, then lighter ends, the rest spread evenly between them."""
    # Of equally fast plans a search keeps the first one, so the even spread comes first.
    even = even_ends(num_layers, num_stages)
    lighter = range(MOST_LAYERS_LIGHTER + 1)
    if num_stages == 1:
        return [even]
    if num_stages == 2:
        pairs = [(num_layers - last, last) for last in (even[1] - less for less in lighter)]
        pairs += [(first, num_layers - first) for first in (even[0] - less for less in lighter)]
    else:
        pairs = [(even[0] - less, even[1] - lesser) for less, lesser in product(lighter, lighter)]
    return [pair for pair in dict.fromkeys(pairs) if min(pair) > 0]


@lru_cache(maxsize=1024)  # a search over numbers of devices asks for the same few again and again
def all_layouts(num_layers: int, num_stages: int, ends: tuple[tuple[int, int], ...]) -> tuple[Layout, ...]:
    """Every schedule and number of chunks with each of these ends: the plainest first."""
    plain = [_layout(ONE_F_ONE_B, 1, num_layers, num_stages, pair) for pair in ends]
    if num_stages == 1:
        return tuple(plain)
    even = even_ends(num_layers, num_stages)
    # The trainer cuts stages into equal chunks, so interleaving needs the same number of layers on every stage.
    chunks = divisors(num_layers // num_stages)[1:] if num_layers % num_stages == 0 and even in ends else []
    chunked = [_layout(INTERLEAVED, num_chunks, num_layers, num_stages, even) for num_chunks in chunks]
    others = [layout._replace(schedule=schedule) for schedule in (ZERO_BUBBLE, GPIPE) for layout in plain]
    return (*plain, *chunked, *others)


def _layout(schedule: int, num_chunks: int, num_layers: int, num_stages: int, ends: tuple[int, int]) -> Layout:
    most = max(spread_layers(num_layers, num_stages, *ends))
    return Layout(schedule, num_chunks, *ends, -(-most // num_chunks))
