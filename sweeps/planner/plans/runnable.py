"""The choices of a search that a trainer can run; schedules, and spreads of layers over stages, that a search tries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from conf.compose.settings import Settings
from conf.plan.chunks import least_layers
from conf.plan.expert_axis import require_own_experts
from conf.plan.knobs import KNOB, KnobValue
from conf.plan.trainer_call import layer_split
from conf.plan.trainer_limits import BESIDE_NOTHING, LAYER_SPLIT, Beside, beside, limits_of
from conf.plan.trainer_limits import runs as trainer_runs
from conf.types.schema import Frozen, Value
from conf.types.trainer_spec import TRISWEEP
from costs import Implementation
from costs.step.schedule import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE
from sweeps.planner.plans.strategy import even_ends, spread_layers

MOST_LAYERS_LIGHTER = 4
"""The first and the last stage are tried with up to this many layers less than an even spread gives them. What they
hold besides layers, embedding and head, weighs up to 2.6 layers in the models of conf/model (a Llama 3.1 8B's head)."""
MOST_LAYERS_LIGHTER_IN_CHUNKS = 2
"""The same of interleaved stages, of which each number of chunks is tried with these ends."""


def runs(trainer: Implementation, knob: str, value: KnobValue, features: Beside = BESIDE_NOTHING) -> bool:
    """True if the trainer runs plans with these features in which the knob has this value."""
    # How layers are spread is a kind of its own, about which `layouts` asks.
    return isinstance(value, tuple) or _allows(trainer.name, knob, value, features)


def require_run(trainer: Implementation, settings: Settings, pinned: Mapping[str, KnobValue]) -> None:
    """Refuse a model, a precision or a pinned knob that the trainer does not run in any plan.

    Raises:
        InfeasiblePlan: names the key, its value, and what the trainer lacks.
    """
    if trainer.name == TRISWEEP.name:
        require_own_experts(settings.model)
    keys = {KNOB[name].key: value for name, value in pinned.items() if not isinstance(value, tuple)}
    layers = pinned.get("layers_per_stage")
    if isinstance(layers, tuple):
        keys[LAYER_SPLIT] = layer_split(layers)
    features = _pinned_features(settings, pinned)
    for limit in limits_of(trainer.name):
        group, _, name = limit.of.partition(".")
        if group in ("model", "precision"):
            value = getattr(getattr(settings, group), name)
            value = "given" if isinstance(value, Frozen) else value
        elif limit.of in keys:
            value = keys[limit.of]
        else:
            continue
        if limit.holds(features) and limit.meets(value):
            given = layers if isinstance(layers, tuple) and limit.of == LAYER_SPLIT else value
            raise limit.refusal(given, trainer.name, "another --implementation")


def _pinned_features(settings: Settings, pinned: Mapping[str, KnobValue]) -> Beside:
    """The features that all plans with these pinned knobs have."""
    axes = ("pipeline", "tensor", "context")
    sizes = {name: pinned.get(f"{name}_parallel_size") for name in axes}
    has = {"offload": pinned.get("offload_optimizer") is True}
    has["activations_offloaded"] = pinned.get("offload_activations") is True
    several = {name: isinstance(size, int) and size > 1 for name, size in sizes.items()}
    schedule = pinned.get("schedule")
    words = (schedule,) if isinstance(schedule, str) else ()
    return beside(settings.model, settings.precision, *words, **has, **several)


@lru_cache(maxsize=4096)  # asked for every block of a search
def _allows(trainer: str, knob: str, value: Value, features: Beside) -> bool:
    key = KNOB[knob].key if knob in KNOB else knob
    return trainer_runs(trainer, key, value, features)


class StageLayout(NamedTuple):
    """One way to lay the layers over the stages.

    Attributes:
        schedule: index into SCHEDULES.
        chunk_layers: layers of the fullest chunk.
        split: in which way stages differ, as trainers are asked (`conf.plan.trainer_call.layer_split`).
    """

    schedule: int
    num_chunks: int
    first_stage_layers: int
    last_stage_layers: int
    chunk_layers: int
    split: str


def layer_ends(num_layers: int, num_stages: int, most_lighter: int = MOST_LAYERS_LIGHTER) -> list[tuple[int, int]]:
    """Layers of the first and the last stage: even first, then lighter ends, the rest spread evenly between them."""
    # Of equally fast plans a search keeps the first one, so the even spread comes first.
    even = even_ends(num_layers, num_stages)
    lighter = range(most_lighter + 1)
    if num_stages == 1:
        return [even]
    if num_stages == 2:
        pairs = [(num_layers - last, last) for last in (even[1] - less for less in lighter)]
        pairs += [(first, num_layers - first) for first in (even[0] - less for less in lighter)]
    else:
        pairs = [(even[0] - less, even[1] - lesser) for less, lesser in product(lighter, lighter)]
    return [pair for pair in dict.fromkeys(pairs) if min(pair) > 0]


@lru_cache(maxsize=1024)  # a search over numbers of devices asks for the same few again and again
def all_layouts(
    num_layers: int, num_stages: int, pinned_ends: tuple[int, int] | None, pinned_chunks: int | None
) -> tuple[StageLayout, ...]:
    """Every schedule and number of chunks with each spread of the layers: the plainest first."""
    ends = [pinned_ends] if pinned_ends else layer_ends(num_layers, num_stages)
    plain = [_layout(ONE_F_ONE_B, 1, num_layers, num_stages, pair) for pair in ends]
    if num_stages == 1:
        return tuple(plain)
    chunked = [
        _layout(INTERLEAVED, num_chunks, num_layers, num_stages, pair)
        for num_chunks in ([pinned_chunks] if pinned_chunks else chunk_numbers(num_layers, num_stages))
        for pair in (
            [pinned_ends] if pinned_ends else layer_ends(num_layers, num_stages, MOST_LAYERS_LIGHTER_IN_CHUNKS)
        )
        if num_chunks > 1 and has_chunks(num_layers, num_stages, pair, num_chunks)
    ]
    others = [layout._replace(schedule=schedule) for schedule in (ZERO_BUBBLE, GPIPE) for layout in plain]
    return (*plain, *chunked, *others)


def chunk_numbers(num_layers: int, num_stages: int) -> list[int]:
    """Numbers of chunks that cut a stage of the usual size into as many as have at most one, two, three layers..."""
    # Of the numbers in between, the fullest chunk is as full as with a smaller number.
    most = -(-num_layers // num_stages)
    # Chunks of at most k layers are n / k, rounded up; one chunk is no interleaving. One more, where embedding and head
    # of two stages were chunks of their own, would leave the fullest chunk a layer, while the closed form, which takes
    # all chunks of a stage to be equal, would promise a smaller bubble.
    return sorted({-(-most // layers) for layers in range(1, most + 1)} - {1})


def has_chunks(num_layers: int, num_stages: int, ends: tuple[int, int], num_chunks: int) -> bool:
    """True if every chunk has a layer, or embedding or head in place of one."""
    layers = spread_layers(num_layers, num_stages, *ends)
    return all(count >= least_layers(stage, num_stages, num_chunks) for stage, count in enumerate(layers))


def _layout(schedule: int, num_chunks: int, num_layers: int, num_stages: int, ends: tuple[int, int]) -> StageLayout:
    layers = spread_layers(num_layers, num_stages, *ends)
    return StageLayout(schedule, num_chunks, *ends, -(-max(layers) // num_chunks), layer_split(layers))
