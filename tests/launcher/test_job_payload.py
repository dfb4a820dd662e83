"""Functions that jobs call are named where they are submitted, and found where they run."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import launcher.job_payload
from launcher.job_payload import ByName

NAMED = [value for value in vars(launcher.job_payload).values() if isinstance(value, ByName)]


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named.name)
def test_every_name_is_a_function_that_takes_a_folder_first(named: ByName) -> None:
    assert next(iter(inspect.signature(named.function).parameters)) == "folder"


def test_it_is_called_like_the_function_itself() -> None:
    assert ByName("operator", "add")(2, 3) == 5


def test_what_a_rank_is_started_with_waits_for_nothing_that_only_some_ranks_need() -> None:
    check = "import sys, launcher.slurm.task; print([m for m in ('pydantic', 'train_core') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
