"""Trials whose program is a few lines of plain Python, without torch, so that each takes a blink."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

from conf.compose.load import settings_of
from conf.compose.tree import with_values
from tests.composed import compose_tree
from train_core.trial.folder import TrialFolder

STEPS = """
for step in range(1, 5):
    print(f"step {step} loss {5 - step / 2} time {0.1 * step:.2f} s memory 2.5 GiB")
"""


class MakeTrial(Protocol):
    """`make_trial(program, {"trainer.start": "srun"})`: a folder whose trainer is the program, and its experiment."""

    def __call__(self, program: str, values: Mapping[str, object] | None = None) -> TrialFolder: ...


@pytest.fixture
def make_trial(tmp_path: Path) -> MakeTrial:
    def make(program: str, values: Mapping[str, object] | None = None) -> TrialFolder:
        script = tmp_path / "program.py"
        script.write_text(program)
        tree = compose_tree(["trainer=command", "training.num_steps=4", "training.num_warmup_steps=1"])
        own = {"trainer.command": [sys.executable, str(script)], "trainer.start": "once"}
        experiment = settings_of(with_values(tree, {**own, **(values or {})})).experiment()
        trial = TrialFolder(tmp_path / "a sweep" / "a trial")
        trial.write_trial({"experiment": experiment.model_dump(mode="json")})
        return trial

    return make
