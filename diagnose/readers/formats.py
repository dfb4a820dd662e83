"""Lines about steps, of every trainer: how they are told from others, and what they call their figures.

Source of each form: the printing code of Megatron-LM, Megatron-DeepSpeed, gpt-neox, Megatron-Bridge, NeMo, NeMo
Automodel, Primus, torchtitan, nanotron, DeepSpeed, DeepSpeed-Chat, transformers (with tqdm), nanoGPT, its speed runs,
nanochat, llm.c, MaxText, LitGPT, torchtune, llm-foundry, OLMo, fms-fsdp, InternLM, mmengine and xtuner, fairseq,
PaddleNLP, MindFormers and verl.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from conf.folders import package_content


class StepFormat(NamedTuple):
    """How a program's lines about steps are told from others.

    Attributes:
        program: as in `UserRun.program`.
        opening: letters that each such line has; looked for before anything else, as it is quick.
        number: finds the number of the step as its first group, or as its groups `step`, `epoch` and `of`; lines of a
            pattern without groups are counted.
        first: the number of the first step.
        averages: true where a line's time is the mean of all steps since the one before.
        pair: finds names and figures; None takes `name: figure`.
        behind: what lines that follow, and say more of the step, have in them; None where there are none.
        own: quantities under names that mean something else elsewhere.
    """

    program: str
    opening: str
    number: re.Pattern[str]
    first: int = 1
    averages: bool = False
    pair: re.Pattern[str] | None = None
    behind: re.Pattern[str] | None = None
    own: Mapping[str, tuple[str, float]] = MappingProxyType({})


FIGURE = r"([-+]?[.\d][\d.,_]*(?:[eE][-+]?\d+)?)(?: ?(ms|s|[KMGBT]|%)(?![A-Za-z]))?"
PAIR = re.compile(rf"([A-Za-z_][\w/ ().-]*?) ?[:=] *{FIGURE}")
SPACED_PAIR = re.compile(rf"\b([a-z_]+):? {FIGURE}")
EQUAL_PAIR = re.compile(rf"([A-Za-z_][\w/]*(?: ?\([\w/]+\))?)={FIGURE}")
COLON_PAIR = re.compile(rf"([A-Za-z_][\w/]*(?: ?\([\w/]+\))?): *{FIGURE}")
PLAIN_PAIR = re.compile(rf"\b([a-z_]+) {FIGURE}")
UNIT_PAIR = re.compile(rf"(?=[\d.,]+(?:% | )(ms|tok/s|bf16 MFU)\b){FIGURE}")
SHARE = re.compile(r"[GM]i?B\(([\d.]+)%\)")
PAIRS = {"spaced": SPACED_PAIR, "equal": EQUAL_PAIR, "colon": COLON_PAIR, "plain": PLAIN_PAIR, "unit": UNIT_PAIR}


def _format(row: dict[str, Any]) -> StepFormat:
    own = {name: (quantity, float(scale)) for name, (quantity, scale) in row.pop("own", {}).items()}
    patterns = {name: re.compile(row.pop(name)) for name in ("number", "behind") if name in row}
    return StepFormat(**row | patterns | {"pair": PAIRS.get(row.get("pair", "")), "own": MappingProxyType(own)})


FORMATS = tuple(map(_format, package_content("formats.yaml", __package__)))
QUANTITIES: dict[str, tuple[str, float]] = {
    name: (row["quantity"], float(row["scale"]))
    for row in package_content("figures.yaml", __package__)
    for name in row["names"]
}
"""What programs call a quantity, in lower case, and its unit."""
