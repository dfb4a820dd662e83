"""`--json`: every command that prints a table answers with one document, and with nothing else on stdout."""

from __future__ import annotations

import json
import re
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from cli.main import app
from tests.cli.commands.plan.conftest import FEW
from tests.cli.conftest import SMOKE, Command
from tests.diagnose.made_up import CORE, SIZES, dump, megatron_steps
from tests.docs.documented import ROOT
from tests.messages import said

TABLE = "layers,hidden,heads,seq,gpu,num_gpus,tp,pp,micro_batch,global_batch,iter_time_s\n24,1024,16,1024,a100-40gb,8"
CASES = {
    "plan": ("plan", "smoke"),
    "search": ("plan", "model=gpt-22b", "cluster=selene", "parallel.world_size=16", *FEW, "--top", "2"),
    "status": ("status", "smoke"),
    "report": ("report", "smoke"),
    "estimate": ("estimate", "in.csv", "--out", "out.csv", "--score"),
    "diagnosis": ("diagnose", "run.log", "cluster=dgx-h100"),
    "rehearsal": ("rehearse", "model=tiny"),
    "doctor": ("doctor", "--no-job"),
    "rerun": ("rerun", "smoke", "tp1-pp1-dp1"),
    "calibration": ("calibrate", "cluster=frontier", "--dry-run"),
    "sweep": ("sweep", *SMOKE, "--here"),
    "advance": ("advance", "smoke"),
    "pause": ("pause", "smoke"),
    "resume": ("resume", "smoke"),
    "retry": ("retry", "smoke", "--failed"),
    "cancel": ("cancel", "smoke"),
    "init": ("init", "elsewhere"),
    "list": ("list", "cluster"),
    "show": ("show", "model=tiny"),
}
"""By the name of the document. Whoever gives a command --json adds it here, and its keys to docs/json.md."""

OF_SECONDS = {"rehearsal": "test_imports", "rerun": "test_rerun", "doctor": "test_doctor"}
"""Only `make test-all` runs these here, as other tests, which are named, read the same documents."""

READ_BY_ASSISTANTS = {
    "search": "## 2. Plan",
    "status": "## 4. Follow",
    "report": "## 5. Results",
    "diagnosis": "## 6. Diag",
}
"""The parts of SKILL.md that name keys, by the document in which an assistant looks for them."""


def document_of(trisweep: Command, folder: Path, *arguments: str) -> dict[str, Any]:
    done = trisweep(*arguments, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def named_in_skill(heading: str) -> set[str]:
    """The names of one part of the page, without those of commands, options and files."""
    part = (ROOT / "SKILL.md").read_text().split(heading)[1].split("\n## ")[0]
    names = {name for name in re.findall(r"`([a-z][a-z_.]+)`", part) if not name.endswith(".md")}
    return {key for name in names for key in name.split(".")}


def keys_of(document: object) -> set[str]:
    if isinstance(document, dict):
        return set(document).union(*map(keys_of, document.values()))
    return set().union(*map(keys_of, document)) if isinstance(document, list) else set()


def unfinished_copy(finished: Path, to: Path) -> Path:
    """The sweep as it was before its last trial had ended."""
    shutil.copytree(finished / "runs", to / "runs")
    (*_, last) = sorted((to / "runs/smoke-local/trials").glob("*/measurement.json"))
    last.unlink()
    return to


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in OF_SECONDS else name for name in CASES]
)
def test_a_command_answers_with_one_document(name: str, finished: Path, trisweep: Command, tmp_path: Path) -> None:
    if name in ("pause", "resume"):
        finished = unfinished_copy(finished, tmp_path)
    (finished / "in.csv").write_text(f"{TABLE},1,1,1,8,0.5\n,,,,,,,,,,\n")
    (finished / "run.log").write_text(SIZES + dump(CORE) + megatron_steps([20.0, 15.0, 15.1]))
    document = document_of(trisweep, finished, *CASES[name])
    assert (document["document"], document["version"]) == (name, 4)
    assert f"`{name}`" in (ROOT / "docs" / "json.md").read_text()
    if name in READ_BY_ASSISTANTS:
        named = named_in_skill(READ_BY_ASSISTANTS[name])
        assert named - keys_of(document) == set()
        assert len(named) > 2


def test_every_command_with_the_option_is_tried_here() -> None:
    commands = {each.name or each.callback.__name__: each.callback for each in app.registered_commands if each.callback}
    with_option = {name for name, command in commands.items() if "as_json" in signature(command).parameters}
    assert with_option == {arguments[0] for arguments in CASES.values()}


@pytest.mark.slow
def test_a_status_says_of_every_number_where_it_is_from(finished: Path, trisweep: Command) -> None:
    document = document_of(trisweep, finished, "status", "smoke")
    assert document["counts"] == {"COMPLETED": 3, "INFEASIBLE": 1}
    trial = document["common"] | document["trials"][0]
    assert {"repeat", "num_runs", "is_middle_run"} <= trial.keys()
    assert trial["predicted_step_seconds"] > 0
    assert trial["measured_step_seconds"] > 0
    assert trial["age_seconds"] == pytest.approx(trial["ended_unix_seconds"] - trial["started_unix_seconds"])
    rates = [key for key in trial if key.endswith("flops_per_second_per_device")]
    assert all(key.startswith(("predicted_", "measured_", "live_")) for key in rates)


def test_a_plan_lists_points_that_cannot_exist_too(tmp_path: Path, trisweep: Command) -> None:
    document = document_of(trisweep, tmp_path, "plan", "smoke")
    points = [document["common"] | point for point in document["points"]]
    (impossible,) = [point for point in points if point["infeasible_reason"]]
    assert impossible["point"] == {"parallel.world_size": 3, "parallel.tensor_parallel_size": 2}
    assert impossible["predicted_step_seconds"] is None


def test_what_was_wrong_goes_to_stderr_alone(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("status", "smoke", "--json", cwd=tmp_path)
    assert done.stdout == ""
    said(done, "smoke")


@pytest.mark.slow
def test_a_watch_that_contradicts_it_is_refused(finished: Path, trisweep: Command) -> None:
    done = trisweep("status", "smoke", "--watch", "--json", cwd=finished)
    assert done.stdout == ""
    said(done, "")


@pytest.mark.slow
def test_a_command_that_changes_a_sweep_says_how_it_stands_and_what_was_done(
    finished: Path, trisweep: Command, tmp_path: Path
) -> None:
    retried = document_of(trisweep, finished, "retry", "smoke", "--failed")
    assert retried["to_run_again"] == []
    assert retried["counts"] == {"COMPLETED": 3, "INFEASIBLE": 1}
    goes_on = unfinished_copy(finished, tmp_path)
    assert document_of(trisweep, goes_on, "pause", "smoke")["is_paused"]
    refused = trisweep("sweep", *SMOKE, "--here", f"output_dir={goes_on / 'runs'}", cwd=finished)
    assert f"Give `trisweep resume smoke cluster=local output_dir={goes_on / 'runs'}` first." in " ".join(
        refused.stderr.split()
    )
    assert not document_of(trisweep, goes_on, "resume", "smoke")["is_paused"]
    dry = document_of(trisweep, finished, "sweep", "smoke", "cluster=frontier", "--dry-run")
    assert len(dry["would_run"]) == 5


@pytest.mark.slow
def test_a_quiet_command_prints_nothing_but_errors_and_its_document(finished: Path, trisweep: Command) -> None:
    for arguments in (("status", "smoke"), ("plan", "smoke"), ("sweep", *SMOKE, "--here"), ("list",)):
        done = trisweep(*arguments, "--quiet", cwd=finished)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert document_of(trisweep, finished, "status", "smoke", "-q")["counts"]
    wrong = trisweep("status", "nowhere", "-q", cwd=finished)
    assert wrong.stdout == ""
    said(wrong, "sweep = 'nowhere'")


@pytest.mark.slow
def test_no_color_leaves_no_escape_sequence(finished: Path, trisweep: Command) -> None:
    colourful = trisweep("status", "smoke", cwd=finished, FORCE_COLOR="1", TERM="xterm")
    assert "\x1b[3" in colourful.stdout
    plain = trisweep("status", "smoke", cwd=finished, FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")
    assert "\x1b[3" not in plain.stdout
