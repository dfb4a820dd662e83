"""The words of a command as overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.arguments import overrides_of
from conf.errors import ConfigError, UsageError
from sweeps.points.plan import plan_sweep
from sweeps.trial import SweepFolder
from tests.composed import composed
from tests.messages import refused


def test_a_sweep_named_twice_is_told_in_plain_words() -> None:
    with pytest.raises(UsageError, match=r"Two sweeps were named, 175b and sweep=22b\. Name one of them\."):
        overrides_of("175b", ["sweep=22b"])
    assert overrides_of(None, ["sweep=22b"]).stated_value("sweep") == "22b"


def test_a_slip_in_the_name_of_a_sweep_that_was_begun_without_a_file_is_answered_with_that_name(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "runs" / "fit-local")
    folder.path.mkdir(parents=True)
    folder.write_record(plan_sweep(composed(["sweep=smoke", "sweep.name=fit"]), proxy=False, git_sha=""))
    with refused(ConfigError, "sweep") as error:
        overrides_of("fitt", [f"output_dir={tmp_path}/runs"])
    assert "fit?" in str(error.value)
    assert overrides_of("smoke", [f"output_dir={tmp_path}/runs"]).stated_value("sweep") == "smoke"
