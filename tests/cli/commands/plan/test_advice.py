"""Whoever copies a command out of a plan gets what the sentence above it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from conf.folders import options
from tests.cli.commands.plan.conftest import FEW
from tests.cli.conftest import Command
from tests.messages import said

SWEEPS = """# @package _global_
defaults:
  - override /model: llama-3.1-8b
  - override /cluster: {cluster}
  - override /precision: bf16

sweep:
  name: {name}
  question: How far?
  baseline: {{parallel.world_size: 8, batch.global_batch_size: 64}}
  axes: {{}}
  points:
    - {{parallel.world_size: 16, batch.global_batch_size: 128}}
    - {{parallel.world_size: 32, batch.global_batch_size: 256}}
  max_trials: 8
  published: []
  proxy: null
"""
"""Their batch stands in the points alone, as docs/how-to/scaling-study.md has it."""
AWKWARD = {
    "weak-dgx": "cluster=dgx-h100",
    "weak-slurm": "cluster=lumi",
    "175b cluster=selene": "a whole cluster that no batch divides",
    "22b batch.global_batch_size=1280": "a part of the sweep",
    "smoke search.objective=[loss,step_time]": "a loss, and a time",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sweeps of one's own."""
    folder = tmp_path_factory.mktemp("advice")
    (folder / "mine" / "sweep").mkdir(parents=True)
    for name, cluster in (("weak-dgx", "dgx-h100"), ("weak-slurm", "lumi")):
        (folder / "mine" / "sweep" / f"{name}.yaml").write_text(SWEEPS.format(name=name, cluster=cluster))
    return folder


def advised(said: str) -> list[list[str]]:
    """The words of each command that stands on a line of its own."""
    return [shlex.split(line)[1:] for line in said.splitlines() if line.startswith("  trisweep ")]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("asked", [*AWKWARD, *options("sweep")])
def test_every_command_that_a_plan_advises_answers_what_the_plan_says(
    asked: str, here: Path, trisweep: Command
) -> None:
    own = ["--config-dir", "mine"] if asked in {"weak-dgx", "weak-slurm"} else []
    plan = trisweep("plan", *shlex.split(asked), *own, cwd=here, COLUMNS="300")
    assert plan.returncode == 0, plan.stderr
    commands = advised(plan.stdout)
    assert commands
    for words in commands:
        is_sweep = words[0] == "sweep"
        done = trisweep(
            *words, *(["--dry-run"] if is_sweep and "--dry-run" not in words else []), cwd=here, COLUMNS="300"
        )
        assert done.returncode == 0, (words, done.stderr)
        if words[0] == "plan" and (found := re.search(r"--search finds (\S+): (\S+) TFLOPS", plan.stdout)):
            assert re.search(rf"^ *1 +{re.escape(found[1])} +.* {re.escape(found[2])} ", done.stdout, re.MULTILINE), (
                words
            )


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (("--search",), "a step is 256 sequences"),
        (("--search", "batch.global_batch_size=128"), "on 16 devices of dgx-h100; a step is 128 sequences"),
        (("--search", "batch.global_batch_size=512"), "a step is 512 sequences"),
        (("--devices", "16"), "on 16 devices of dgx-h100; a step is 256 sequences"),
    ],
)
def test_a_search_for_a_sweep_is_about_a_batch_of_its_points(
    words: tuple[str, ...], step: str, here: Path, trisweep: Command
) -> None:
    done = trisweep("plan", "weak-dgx", *words, *FEW, "--top", "1", "--config-dir", "mine", cwd=here)
    assert step in " ".join(done.stdout.split()), done.stderr
    if "batch.global_batch_size=512" not in words:
        assert "Searched for the sweep as its" in done.stderr


def test_a_search_for_a_sweep_whose_configuration_is_one_of_its_points_says_nothing(
    here: Path, trisweep: Command
) -> None:
    done = trisweep("plan", "22b", "--search", *FEW, "--top", "1", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")


def test_money_stands_beside_the_price_that_it_is_counted_by(here: Path, trisweep: Command) -> None:
    asked = ("plan", "model=llama-3.1-8b", "cluster=dgx-h100", *FEW, "--devices", "32", "--top", "1")
    done = trisweep(*asked, cwd=here, COLUMNS="200")
    assert re.search(r"Money: \$[\d.]+ an hour of H100", " ".join(done.stdout.split())), done.stdout
    short = trisweep(*asked, "--steps", "3", cwd=here, COLUMNS="200")
    head = next(line for line in short.stdout.splitlines() if line.split()[:2] == ["#", "layout"])
    assert "seconds" in head.split()
    assert "hours" not in head.split()


def test_a_budget_that_is_too_small_names_the_cheapest_plan(here: Path, trisweep: Command) -> None:
    asked = ("plan", "model=llama-3.1-8b", "cluster=dgx-h100", *FEW, "--devices", "32", "--tokens", "1T")
    done = trisweep(*asked, "--budget", "1000", cwd=here)
    said(done, "--budget")
