"""The sweep that a command is about, named by a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands.control import cancel, retry
from cli.started_sweep import started_sweep
from conf.errors import UsageError
from tests.permissions import bound_by_permissions


@pytest.mark.parametrize("name", ["{}/nothing", "{}", "{}/a/b-*", "nowhere/at-all", "../nothing"])
def test_a_path_that_holds_no_sweep_is_one_message(tmp_path: Path, name: str) -> None:
    named = name.format(tmp_path)
    with pytest.raises(UsageError) as error:
        started_sweep(named, [f"output_dir={tmp_path}"])
    assert str(error.value).startswith(f"{named} holds no sweep. Name a folder with a sweep.json")


def test_a_path_that_may_not_be_read_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with bound_by_permissions(), pytest.raises(UsageError, match=r"sweep\.json cannot be read \(Permission denied\)"):
        started_sweep(str(tmp_path / "closed"), [])


@pytest.mark.parametrize("command", [retry, cancel])
def test_a_word_that_may_name_a_trial_is_repeated_with_the_option_for_it(command: Callable[..., None]) -> None:
    with pytest.raises(UsageError, match=r"^nosuch is not an override\. If it names a trial, write --trial nosuch\.$"):
        command("smoke", ["training.seed=3", "nosuch"])
