"""The table of knobs: every choice that makes up a plan, and how other packages spell it.

The line of a knob decides which point of a sweep sets it, with which value a search starts, in which column a search
prices it, which rows of results show it, how layouts are named, and what tables of configurations call it. What a value
means and which values are legal is said where the field is declared, in `schema`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, TypeAlias

from conf.schema import BatchPlan, ParallelPlan, Recompute, Schedule

Listed: TypeAlias = int | str | bool
KnobValue: TypeAlias = Listed | tuple[int, ...] | None
Role: TypeAlias = Literal["searched", "held", "given"]
Shown: TypeAlias = Literal["in every row", "in rows of a search", "nowhere"]

SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved", "zero-bubble", "gpipe")
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full", "pointwise")


@dataclass(frozen=True, slots=True)
class Knob:
    """One choice of a plan.

    Attributes:
        name: the field of `ParallelPlan` or `BatchPlan`, and the name in rows of results.
        label: its part of a layout's short name, with `{}` for the value; empty where the layout leaves it out.
        column: its name in tables of configurations; empty where they have no such column.
        plain: the value that asks for nothing special. A search starts from it, and a label does not mention it.
        values: all values, if they can be listed. In columns of numbers, a name is held as its index in this tuple.
        role: whether a search varies the knob, holds it at `plain` unless it is pinned, or takes it from the job.
        shown: which rows of results have a column of this name.
        in_every_label: whether labels begin with it, whatever its value, so that the labels of several plans line up.
        value_labels: labels of single values, for a knob whose label is not made from its value.
        value_columns: what a table of configurations writes for single values.
    """

    name: str
    label: str = ""
    column: str = ""
    plain: KnobValue = None
    values: tuple[Listed, ...] = ()
    role: Role = "searched"
    shown: Shown = "in every row"
    in_every_label: bool = False
    value_labels: Mapping[str, str] = field(default_factory=dict)
    value_columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str | None:
        """The group of the configuration that states the knob; None for a size that follows from the others."""
        if self.name in ParallelPlan.model_fields:
            return "parallel"
        return "batch" if self.name in BatchPlan.model_fields else None

    @property
    def key(self) -> str:
        """The dotted key of the configuration."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def has_plain(self) -> bool:
        """Whether there is a plain value: numbers of devices and of sequences have none."""
        return self.role != "given" or self.plain is not None

    def entry(self, value: KnobValue) -> KnobValue:
        """What a column holds for a value."""
        return self.values.index(value) if isinstance(value, str) else value

    def value(self, entry: int | bool) -> Listed:
        """The value that an entry of a column stands for."""
        return self.values[int(entry)] if self.values else entry

    def labelled(self, value: KnobValue) -> str:
        """The part of a layout's name that says this value; empty where nothing needs to be said."""
        if self.value_labels:
            return self.value_labels.get(str(value), "")
        return self.label.format(value) if self.in_every_label or value != self.plain else ""


KNOBS = (
    Knob("world_size", column="num_gpus", role="given"),
    Knob("tensor_parallel_size", "tp{}", "tp", plain=1, in_every_label=True),
    Knob("pipeline_parallel_size", "pp{}", "pp", plain=1, in_every_label=True),
    Knob("data_parallel_size", "dp{}", "dp", plain=1, in_every_label=True),
    Knob("virtual_pipeline_size", "vp{}", "vpp", plain=1, shown="in rows of a search"),
    Knob(
        "schedule",
        # Tables of configurations have no column for schedules: they say 1F1B by one chunk, and interleaving by more.
        column="vpp",
        plain="1f1b",
        values=SCHEDULES,
        shown="in rows of a search",
        value_labels={"gpipe": "gpipe", "zero-bubble": "zb"},  # chunks already say that a pipeline is interleaved
        value_columns={"1f1b": "1"},
    ),
    Knob("layers_per_stage", "layers{}", shown="in rows of a search"),
    Knob("sequence_parallel", "sp", "sequence_parallel", plain=False, values=(False, True)),
    Knob("zero_stage", "zero{}", "zero_stage", plain=0, values=(0, 1, 2, 3)),
    Knob("recompute", "{}", "recompute", plain="none", values=RECOMPUTES),
    Knob("recompute_every", "every{}", plain=1, shown="in rows of a search"),
    Knob("context_parallel_size", "cp{}", "cp", plain=1, shown="in rows of a search"),
    Knob("expert_parallel_size", "ep{}", "ep", plain=1, shown="in rows of a search"),
    Knob("expert_tensor_parallel_size", "etp{}", "etp", role="held", shown="nowhere"),
    Knob("zero_group_size", "zg{}", shown="in rows of a search"),
    Knob("offload_optimizer", "offload", plain=False, values=(False, True), shown="in rows of a search"),
    Knob("pipeline_before_data", "pd", plain=False, values=(False, True), shown="in rows of a search"),
    Knob("micro_batch_size", "mb{}", "micro_batch", plain=1, in_every_label=True),
    Knob("global_batch_size", "gb{}", "global_batch", role="given", in_every_label=True),
    Knob("tensor_parallel_across_nodes", plain=False, role="given", shown="nowhere"),
)
KNOB = {knob.name: knob for knob in KNOBS}
SEARCHED_KNOBS = tuple(knob.name for knob in KNOBS if knob.role == "searched")


def plain_values(group: str) -> dict[str, Any]:
    """The knobs of a group that a plan need not mention, each at its plain value."""
    return {knob.name: knob.plain for knob in KNOBS if knob.group == group and knob.has_plain}


def value_of(name: str, parallel: ParallelPlan, batch: BatchPlan) -> KnobValue:
    """The value of a knob in a plan."""
    if name == "data_parallel_size":
        return data_parallel_size_of(parallel)
    value: KnobValue = getattr(parallel if name in ParallelPlan.model_fields else batch, name)
    return value


def data_parallel_size_of(parallel: ParallelPlan) -> int:
    model_parallel_size = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return parallel.world_size // (model_parallel_size * parallel.context_parallel_size)


def label_of(
    parallel: ParallelPlan, batch: BatchPlan, layers_per_stage: Sequence[int], leave_out: Collection[str] = ()
) -> str:
    """A short name of a plan for people; never parsed.

    Args:
        layers_per_stage: the layers of every stage, also where the plan leaves them to be spread evenly.
        leave_out: knobs that all plans of a table share, or that it shows in a column of their own.
    """
    values = {knob.name: value_of(knob.name, parallel, batch) for knob in KNOBS}
    # The layers are compared as they are, not as they were stated: an even list gets no label, like null.
    values["layers_per_stage"] = _spread(layers_per_stage)
    if parallel.recompute == "none":
        values["recompute_every"] = KNOB["recompute_every"].plain  # says nothing where nothing is recomputed
    said = [knob for knob in KNOBS if knob.name not in leave_out]
    in_order = sorted(said, key=lambda knob: not knob.in_every_label)
    return "-".join(filter(None, (knob.labelled(values[knob.name]) for knob in in_order)))


def _spread(layers_per_stage: Sequence[int]) -> str | None:
    """`5.6x10.5`: 5 layers on the first stage, 6 on each of the next 10, 5 on the last; None where all hold as many."""
    return None if len(set(layers_per_stage)) == 1 else layers_in_short(layers_per_stage, separator=".")


def layers_in_short(layers_per_stage: Sequence[int], separator: str = ",") -> str:
    """The layers of all stages with equal neighbours put together, such as `5,6x10,5`."""
    runs = [(layers, len(list(stages))) for layers, stages in groupby(layers_per_stage)]
    return separator.join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in runs)
