"""Where a sweep runs."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.overrides import Overrides
from launcher.where import choose_place


@pytest.mark.parametrize("asked", ["launcher=allocation", "controller=slurm"])
def test_a_job_of_slurms_is_refused_for_a_sweep_on_this_machine(asked: str) -> None:
    key = asked.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key} = .*would run on this machine.*{key}="):
        choose_place(Overrides.parse(["sweep=smoke", asked]), here=True, dry_run=False)
    assert choose_place(Overrides.parse(["sweep=smoke", "cluster=selene", asked]), here=False, dry_run=True).on_slurm
