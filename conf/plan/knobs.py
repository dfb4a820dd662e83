"""The table of knobs, which is `conf/knobs.yaml`: every choice that makes up a plan, and how other packages spell it.

The entry of a knob decides which point of a sweep sets it, with which value a search starts, in which column a search
prices it, which rows of results show it, how layouts are named, and what tables of configurations call it. What a value
means and which values are legal is said where the field is declared, in `schema`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter

from conf.folders import package_content
from conf.types.recompute import MODES, RECOMPUTES
from conf.types.schema import BatchPlan, ContextExchange, ExpertDispatcher, ParallelPlan, Schedule

Listed: TypeAlias = int | str | bool
KnobValue: TypeAlias = Listed | tuple[int, ...] | None
Role: TypeAlias = Literal["searched", "held", "given"]
Shown: TypeAlias = Literal["in every row", "in rows of a search", "nowhere"]

SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved", "zero-bubble", "gpipe")
CONTEXT_EXCHANGES: tuple[ContextExchange, ...] = ("ring", "gather")
EXPERT_DISPATCHERS: tuple[ExpertDispatcher, ...] = ("alltoall", "deepep", "hybridep")


@dataclass(frozen=True, slots=True)
class Knob:
    """One choice of a plan.

    Attributes:
        name: the field of `ParallelPlan` or `BatchPlan`, and the name in rows of results.
        words: what people call it; empty where that is its name.
        label: its part of a layout's short name, with `{}` for the value; empty where the layout leaves it out.
        column: its name in tables of configurations; empty where they have no such column.
        plain: the value that asks for nothing special. A search starts from it, and a label does not mention it.
        values: all values, if they can be listed. In columns of numbers, a name is held as its index in this tuple.
        role: whether a search varies the knob, holds it at `plain` unless it is pinned, or takes it from the job.
        shown: which rows of results have a column of this name.
        meaning: what its part of a layout's name says, for people, with `{}` for the value.
        in_every_label: whether labels begin with it, whatever its value, so that the labels of several plans line up.
        value_labels: labels of single values, for a knob whose label is not made from its value.
        value_meanings: meanings of single values, for a knob whose values have nothing in common.
        value_columns: what a table of configurations writes for single values.
    """

    name: str
    words: str = ""
    label: str = ""
    column: str = ""
    plain: KnobValue = None
    values: tuple[Listed, ...] = ()
    role: Role = "searched"
    shown: Shown = "in every row"
    meaning: str = ""
    in_every_label: bool = False
    value_labels: Mapping[str, str] = field(default_factory=dict)
    value_meanings: Mapping[str, str] = field(default_factory=dict)
    value_columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str | None:
        """The group of the configuration that states the knob; None for a size that follows from the others."""
        if self.name in ParallelPlan.model_fields:
            return "parallel"
        return "batch" if self.name in BatchPlan.model_fields else None

    @property
    def key(self) -> str:
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def has_plain(self) -> bool:
        """True if there is a plain value: numbers of devices and of sequences have none."""
        return self.role != "given" or self.plain is not None

    def entry(self, value: KnobValue) -> KnobValue:
        """The entry of a column for a value."""
        return self.values.index(value) if isinstance(value, str) else value

    def value(self, entry: int | bool) -> Listed:
        """The value that an entry of a column stands for."""
        return self.values[int(entry)] if self.values else entry

    def label_of(self, value: KnobValue) -> str:
        """The part of a layout's name that says this value; empty where nothing needs to be said."""
        if self.value_labels:
            return self.value_labels.get(str(value), "")
        return self.label.format(value) if self.in_every_label or value != self.plain else ""

    def meaning_of(self, value: KnobValue) -> str:
        """The meaning of that part of the name, as a phrase for people."""
        return self.value_meanings.get(str(value), self.meaning).format(value)


OF_LITERALS: dict[str, dict[str, Any]] = {
    "schedule": {"values": SCHEDULES},
    "context_exchange": {"values": CONTEXT_EXCHANGES},
    "expert_dispatcher": {"values": EXPERT_DISPATCHERS},
    "recompute": {
        "values": RECOMPUTES,
        "value_meanings": {
            name: f"recomputes {mode.meaning} in the backward pass" for name, mode in MODES.items() if mode.repeats
        },
    },
}
"""What a knob's values are, where they have a type of their own."""
KNOBS = TypeAdapter(tuple[Knob, ...]).validate_python(
    tuple({"name": name, **line, **OF_LITERALS.get(name, {})} for name, line in package_content("knobs.yaml").items())
)
LAYOUT_KEYS = frozenset(knob.key for knob in KNOBS if knob.group)
"""Every key that decides how a model is laid out and fed."""
KNOB = {knob.name: knob for knob in KNOBS}
IN_ORDER_OF_LABELS = tuple(sorted(KNOBS, key=lambda knob: not knob.in_every_label))
"""The knobs in the order in which a plan's name mentions them."""
SEARCHED_KNOBS = tuple(knob.name for knob in KNOBS if knob.role == "searched")


def plain_values(group: str) -> dict[str, Any]:
    """The knobs of a group that a plan need not mention, each at its plain value."""
    return {knob.name: knob.plain for knob in KNOBS if knob.group == group and knob.has_plain}


PARALLEL_FIELDS = frozenset({"data_parallel_size", *ParallelPlan.model_fields})
"""Pydantic finds them anew each time, and ten thousand plans are asked for every knob."""


def knob_value(name: str, parallel: ParallelPlan, batch: BatchPlan) -> KnobValue:
    return getattr(parallel if name in PARALLEL_FIELDS else batch, name)


def label_of(
    parallel: ParallelPlan, batch: BatchPlan, layers_per_stage: Sequence[int], leave_out: Collection[str] = ()
) -> str:
    """A short name of a plan for people; never parsed.

    Args:
        layers_per_stage: the layers of every stage, also where the plan leaves them to be spread evenly.
        leave_out: knobs that all plans of a table share, or that it shows in a column of their own.
    """
    pairs = labelled_values(parallel, batch, layers_per_stage)
    return "-".join(knob.label_of(value) for knob, value in pairs if knob.name not in leave_out)


def remedy_for(key: str) -> str | None:
    """What to write in place of a knob's code in names of plans, or of a size that follows; None for any other key."""
    name = key.rpartition(".")[2]
    if name.startswith("gradient_accumulation"):
        return "It is computed: give batch.global_batch_size and batch.micro_batch_size."
    meant = next((knob for knob in KNOBS if name in (knob.name, knob.label.format("") or knob.name)), None)
    if meant is None:
        return None
    return (
        f"Did you mean {meant.key}?"
        if meant.group
        else "It is computed: give parallel.world_size, the number of devices."
    )


def label_of_point(values: Mapping[str, object]) -> str:
    """A short name of a point by the dotted keys that it sets, such as `tp4-pp4 on 8 devices`; never parsed.

    The name of a layout holds the values of a whole plan, which a point that cannot exist does not have.
    """
    sizes = {key.rsplit(".", 1)[-1]: value for key, value in values.items()}
    devices = sizes.pop("world_size", None)
    # `pop` leaves in `sizes` what has no label.
    known = [knob for knob in IN_ORDER_OF_LABELS if knob.name in sizes and (knob.label or knob.value_labels)]
    layout = "-".join(filter(None, (knob.label_of(_plain(sizes.pop(knob.name))) for knob in known)))
    parts = [layout, *(f"{name}={value}" for name, value in sizes.items())]
    return " ".join(filter(None, (*parts, on_devices(devices) if devices is not None else "")))


def on_devices(number: object) -> str:
    """The end of a name, which unlike sentences has no comma in a number: `on 1 device`, `on 1024 devices`."""
    return f"on {number} device{'' if number == 1 else 's'}"


def _plain(value: object) -> KnobValue:
    return value if isinstance(value, int | str) else str(value)


def labelled_values(
    parallel: ParallelPlan, batch: BatchPlan, layers_per_stage: Sequence[int]
) -> list[tuple[Knob, KnobValue]]:
    """The knobs that a plan's name mentions, with their values, in the order of the name."""
    values = {**vars(parallel), **vars(batch), "data_parallel_size": parallel.data_parallel_size}
    # The layers are compared as they are, not as they were stated: an even list gets no label, like null.
    is_even = len(set(layers_per_stage)) == 1
    values["layers_per_stage"] = None if is_even else layers_in_short(layers_per_stage, separator=".")
    if parallel.recompute == "none":
        values["recompute_every"] = KNOB["recompute_every"].plain  # says nothing where nothing is recomputed
    return [(knob, values[knob.name]) for knob in IN_ORDER_OF_LABELS if knob.label_of(values[knob.name])]


def layers_in_short(layers_per_stage: Sequence[int], separator: str = ",") -> str:
    """The layers of all stages with equal neighbours put together, such as `5,6x10,5`."""
    runs = [(layers, len(list(stages))) for layers, stages in groupby(layers_per_stage)]
    return separator.join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in runs)
