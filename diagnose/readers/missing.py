"""What a price still needs and nobody says: by name, and where it would stand."""

from __future__ import annotations

from typing import NamedTuple

from conf.folders import package_content
from diagnose.runs import Fact, UserRun
from sweeps.table.columns import DEVICE_COLUMNS, REQUIRED_COLUMNS

TABLE = package_content("places.yaml", __package__)
PLACES, ANYWHERE, OF_A_FAMILY = TABLE["programs"], TABLE["anywhere"], TABLE["of_a_family"]

OF_DEEPSPEED = ("deepspeed", "deepspeed_config", "deepspeed_config_file")
"""What names DeepSpeed's file, which says the stage of ZeRO."""


class MissingFact(NamedTuple):
    """A column that nobody fills.

    Attributes:
        column: of `trisweep estimate`.
        place: where it would stand, in the trainer's words.
        at: the line that has it unresolved, such as `--nnodes $NNODES`; None where no line has.
        give: how to say it on the command line.
    """

    column: str
    place: str
    at: Fact | None
    give: str


def missing_of(run: UserRun) -> list[MissingFact]:
    """The columns without which a run has no price, in their order; empty where it has one."""
    lacking = [column for column in REQUIRED_COLUMNS if column not in run.columns]
    if not any(column in run.columns for column in DEVICE_COLUMNS):
        lacking.append("gpu")
    if "num_experts" in run.columns and "top_k" not in run.columns:
        lacking.append("top_k")
    if "zero_stage" not in run.columns and any(_names_file(run.settings.get(each)) for each in OF_DEEPSPEED):
        lacking.append("zero_stage")
    return [_missing(run, column) for column in lacking]


def _names_file(fact: Fact | None) -> bool:
    return fact is not None and fact.value.strip("'\"").endswith(".json")


def _missing(run: UserRun, column: str) -> MissingFact:
    program = run.program or ""
    place = PLACES.get(OF_A_FAMILY.get(program, program), {}).get(column) or ANYWHERE.get(column, column)
    give = "cluster=dgx-h100, or gpu=H100" if column == "gpu" else f"{column}=NUMBER"
    return MissingFact(column, place, _unresolved(run, place), give)


def _unresolved(run: UserRun, place: str) -> Fact | None:
    """The fact that stands there with a variable in it that nobody sets."""
    names = [word.strip("-`,").replace("-", "_") for word in place.split()]
    known = (run.settings.get(name) for name in names)
    return next((fact for fact in known if fact and ("$" in fact.value or fact.value == "auto")), None)
