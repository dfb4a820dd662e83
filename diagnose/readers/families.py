"""Whose words the settings of a run are, and what fills the columns from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from conf.folders import package_content
from diagnose.readers.columns import nanotron, nemo, others, verl
from diagnose.readers.columns.huggingface import fill_huggingface
from diagnose.readers.columns.megatron import fill_megatron
from diagnose.readers.columns.torchtitan import fill_torchtitan
from diagnose.readers.said import Columns, SaidSettings
from diagnose.runs import Fact, SaidBy, UserRun


class TrainerFamily(NamedTuple):
    """Trainers that share their words.

    Attributes:
        fill: puts the columns.
        sections: parts of a configuration whose keys count without them.
    """

    fill: Callable[[Columns], None]
    sections: tuple[str, ...] = ()


MEGATRON, TITAN, HUGGING_FACE = (
    TrainerFamily(fill_megatron),
    TrainerFamily(fill_torchtitan),
    TrainerFamily(fill_huggingface, ("fsdp_config.",)),
)
NEMO, NANOTRON = TrainerFamily(nemo.fill_nemo, nemo.SECTIONS), TrainerFamily(nanotron.fill_nanotron, nanotron.SECTIONS)
OTHER, VERL = TrainerFamily(others.fill_other, others.SECTIONS), TrainerFamily(verl.fill_verl)
FAMILIES = {"megatron": MEGATRON, "torchtitan": TITAN, "huggingface": HUGGING_FACE, "nemo": NEMO, "nanotron": NANOTRON}
FAMILIES |= {"verl": VERL, "other": OTHER}
SIGNS: tuple[tuple[str | None, TrainerFamily, tuple[str, ...]], ...] = tuple(
    (row["program"], FAMILIES[row["family"]], tuple(row["names"].split()))
    for row in package_content("signs.yaml", __package__)
)
"""The program that a setting tells, and the family; the first one that a run has decides."""
OF_LINES: dict[str, TrainerFamily] = {
    # Every other program whose lines are known says little else than sizes.
    **{"megatron": MEGATRON, "torchtitan": TITAN, "nemo": NEMO, "nanotron": NANOTRON},
    "verl": VERL,
    **dict.fromkeys(("hf-trainer", "deepspeed", "deepspeed-chat"), HUGGING_FACE),
}
"""Families by the program whose lines about steps a log has."""
FRONT_ENDS = ("llamafactory", "train_bash", "axolotl", "swift", "run_clm", "finetune.py", "sft.py")
"""Programs, and scripts by parts of their names, that hand their arguments to Hugging Face's Trainer."""
AMBIGUOUS = ("megatron", "hf-trainer", "deepspeed", None)
"""Programs whose lines others print too: a bar, or what Megatron prints, in which settings decide."""


def _tells(fact: Fact, family: TrainerFamily) -> bool:
    """True unless sizes alone would tell Megatron: prose of any program has them, and Python files of others."""
    is_python = fact.at is not None and fact.at.file.endswith(".py")
    return fact.said_by is not SaidBy.PROSE and not (family is MEGATRON and is_python)


def family_of(run: UserRun) -> TrainerFamily | None:
    """The family of a run, whose program is named with it; None where nothing tells it."""
    settings = SaidSettings(run)
    if run.program not in AMBIGUOUS:
        return OF_LINES.get(run.program or "", OTHER)
    script = settings.text("program").lower()
    if "torchtitan" in script:
        run.program = "torchtitan"
        return TITAN
    for program, family, names in SIGNS:
        if any(_tells(run.settings[name], family) for name in names if name in run.settings):
            run.program = run.program if program is None or run.program == "deepspeed" else program
            return family
    if "pretrain_" in script or "megatron" in script:
        return MEGATRON
    if any(name in script for name in FRONT_ENDS):
        run.program = run.program or "hf-trainer"
        return HUGGING_FACE
    is_other = SaidSettings(run, others.SECTIONS).is_known(*others.NAMES)
    return OF_LINES.get(run.program or "", OTHER if is_other else None)
