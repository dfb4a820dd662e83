"""Where the numbers come from. What stands in the files is MADE UP for the test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from results.render.section import FactList, Section
from results.report.sections.answer import section as answer
from results.report.sections.provenance import section
from sweeps.sweep import Sweep
from tests.results.conftest import CREATED, FULL, WriteSweep, performance, trial
from tests.results.report.sections.conftest import rows_of, subject_of, text_of

TRIALS = (trial("base", is_baseline=True), trial("two", world_size=2))
HOW = {"base": performance(100.0), "two": performance(300.0, 2)}


def given(sweep: Sweep, name: str = "first", **changes: Any) -> Sweep:
    """The sweep, with a command on record."""
    place = sweep.folder.path / "provenance"
    place.mkdir(exist_ok=True)
    content = {
        "time_unix_seconds": CREATED,
        "command": ["trisweep", "sweep", "made-up", "cluster=frontier", "output_dir=my runs"],
        "overrides": ["sweep=made-up", "cluster=frontier", "output_dir=my runs", "training.num_steps=7"],
        "git_sha": "0123abc",
        "uncommitted_changes": None,
        "hostname": "made-up-login",
        "python": "/made/up/python",
        "python_version": "3.11.0",
        "modules": ["rocm/6.0", "PrgEnv-gnu"],
        "packages": {"torch": "2.9.0", "some-other": "1.0"},
    }
    (place / f"{name}.json").write_text(json.dumps(content | changes))
    return sweep


def found_in(sweep: Sweep) -> Section:
    return section(subject_of(sweep))


def test_the_commands_that_make_it_again_can_be_copied(write_sweep: WriteSweep) -> None:
    said = text_of(found_in(given(write_sweep(TRIALS, HOW))))
    assert "`trisweep sweep made-up cluster=frontier 'output_dir=my runs' training.num_steps=7`" in said
    assert "`trisweep rerun made-up two cluster=frontier 'output_dir=my runs'`" in said


def test_the_commands_name_the_folders_of_configuration_that_the_last_one_was_given(write_sweep: WriteSweep) -> None:
    said = text_of(found_in(given(write_sweep(TRIALS, HOW), overrides=[], config_words=["--config-dir", "/my conf"])))
    assert "`trisweep sweep made-up --config-dir '/my conf'`" in said
    assert "`trisweep rerun made-up two --config-dir '/my conf'`" in said


def test_the_answer_advises_commands_with_all_that_the_sweep_was_given(write_sweep: WriteSweep) -> None:
    """Without its `sweep.max_trials` the advised command would measure far more than the sweep did."""
    sweep = write_sweep((TRIALS[0], trial("other", micro_batch_size=2)), {"base": HOW["base"], "other": HOW["base"]})
    record = sweep.record.model_copy(update={"overrides": ("model=gpt-22b",)})
    words = ["model=gpt-22b", "sweep.max_trials=3", "budget.device_hours=2"]
    said = text_of(answer(subject_of(given(sweep._replace(record=record), overrides=["sweep=made-up", *words]))))
    assert f"`trisweep sweep made-up {' '.join(words)} search.max_rounds=3`" in said


def test_the_answer_advises_commands_about_the_same_points_in_the_same_folder(write_sweep: WriteSweep) -> None:
    sweep = write_sweep(TRIALS[:1], HOW, plan=[trial("full", model=FULL, pipeline_parallel_size=16, world_size=16)])
    record = sweep.record.model_copy(update={"overrides": ("cluster=selene", "model=gpt-22b")})
    sweep = given(sweep._replace(record=record), config_words=["--config-dir", "/my conf"])
    page = answer(subject_of(sweep))
    words = "made-up cluster=selene model=gpt-22b 'output_dir=my runs' --config-dir '/my conf'"
    assert f"`trisweep plan {words} --search`" in page.finding
    unmeasured = answer(subject_of(sweep._replace(record=record.model_copy(update={"trials": TRIALS[1:]}))))
    assert f"`trisweep status {words}`" in text_of(unmeasured)


def test_software_machine_and_modules_are_named(write_sweep: WriteSweep) -> None:
    found = found_in(given(write_sweep(TRIALS, HOW)))
    (facts,) = (dict(block.items) for block in found.blocks if isinstance(block, FactList))
    assert facts["packages"] == "torch 2.9.0"
    assert facts["modules"] == "rocm/6.0, PrgEnv-gnu"
    assert facts["host"] == "made-up-login"
    assert "commit `0123abc`, given on made-up-login" in found.finding


def test_changes_that_were_not_committed_are_a_caution(write_sweep: WriteSweep) -> None:
    found = found_in(given(write_sweep(TRIALS, HOW), uncommitted_changes="changes-1.patch"))
    assert "with changes that were not committed" in found.finding
    assert "apply `provenance/changes-1.patch`" in text_of(found)


def test_every_command_is_listed_in_order(write_sweep: WriteSweep) -> None:
    sweep = given(given(write_sweep(TRIALS, HOW), "b"), "a", time_unix_seconds=CREATED + 60, command=["trisweep", "x"])
    assert [row["command"] for row in rows_of(found_in(sweep), "commands")][-1] == "trisweep x"


def test_every_measured_trial_has_its_fingerprint(write_sweep: WriteSweep) -> None:
    rows = rows_of(found_in(write_sweep(TRIALS, HOW)), "fingerprints")
    assert TRIALS[0].experiment is not None
    assert rows[0]["fingerprint"] == TRIALS[0].experiment.fingerprint
    assert [row["trial"] for row in rows] == ["base", "two"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": 3, "packages": [], "time_unix_seconds": "noon"}'])
def test_a_file_that_cannot_be_read_leaves_the_rest(write_sweep: WriteSweep, content: str) -> None:
    sweep = write_sweep(TRIALS, HOW)
    place = sweep.folder.path / "provenance"
    place.mkdir()
    (place / "broken.json").write_text(content)
    assert "`trisweep sweep made-up`" in text_of(found_in(sweep))


def test_a_command_of_any_length_and_with_backticks_stays_code(write_sweep: WriteSweep) -> None:
    sweep = given(write_sweep(TRIALS, HOW), overrides=["a=`b`", "c=" + "x" * 10_000])
    said = text_of(found_in(sweep))
    assert "`trisweep sweep made-up 'a='" in said
    assert "x ...`" in said
    assert len(said) < 5_000
