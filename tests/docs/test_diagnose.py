"""The answer in docs/diagnose.md is what the command prints today of the log that the page tells of."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

from tests.diagnose.made_up import CORE, SIZES, dump, megatron_steps
from tests.docs.documented import ROOT
from tests.forked_command import run_forked

PAGE = ROOT / "docs" / "diagnose.md"
OF_PAGE = {
    **CORE,
    "attention_softmax_in_fp32": False,
    "make_vocab_size_divisible_by": 128,
    "overlap_grad_reduce": False,
    "padded_vocab_size": 128256,
    "save_interval": 50,
    "sequence_parallel": False,
    "tp_comm_overlap": False,
}
MEMORY = (
    "[Rank 0] (after 10 iterations) memory (MB) | allocated: 9801.5 | max allocated: 12822.9 | reserved: 14466.0 | "
)
SOCKET = "node07:4121:4188 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n"


def test_what_readme_shows_are_lines_of_that_answer() -> None:
    shown = (ROOT / "README.md").read_text().partition("    $ trisweep diagnose run.log")[2].partition("\n\nFrom a")[0]
    lines = [line for line in shown.splitlines()[1:] if line.strip() not in ("", "...")]
    assert len(lines) > 10
    assert [line for line in lines if line not in PAGE.read_text()] == []


def example_log() -> str:
    """A log of Megatron-Core that ran over sockets, and saved every fifty steps."""
    drawn = random.Random(7)
    times = [30.8, *(19.4 * drawn.gauss(1, 0.008) for _ in range(20))]
    lines = megatron_steps(times).splitlines()
    for place in range(20, 0, -5):
        lines.insert(place, f"saving checkpoint at iteration {place * 10:7} to /checkpoints in torch_dist format")
    lines.insert(1, f"{MEMORY}max reserved: 14466.0")
    return SOCKET + SIZES + dump(OF_PAGE) + "\n".join(lines) + "\n"


def test_the_answer_in_the_page_is_what_the_command_prints_today(tmp_path: Path) -> None:
    shown = PAGE.read_text().partition("    $ trisweep diagnose run.log cluster=dgx-h100\n")[2].partition("\n\n1. ")[0]
    (tmp_path / "run.log").write_text(example_log())
    environment = {**os.environ, "COLUMNS": "100"}
    printed = run_forked(("diagnose", "run.log", "cluster=dgx-h100"), tmp_path, environment).stdout
    assert re.sub(r"\s+", " ", printed).strip() == re.sub(r"\s+", " ", shown).strip()
