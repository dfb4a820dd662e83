"""What variables of jobs are set to is in no record, and whoever goes on with the sweep has it all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conf.errors import UsageError
from launcher.control.orders import overrides_at_begin
from sweeps.folder.journal import History, Journal
from sweeps.trial import SweepFolder
from tests.cli.conftest import OF_JOBS


@pytest.mark.slow
def test_no_file_of_a_sweep_but_one_holds_the_value_and_it_is_private(finished: Path, tmp_path: Path) -> None:
    holders = [path for path in finished.rglob("*") if path.is_file() and OF_JOBS.encode() in path.read_bytes()]
    assert [path.name for path in holders] == ["private.json"]
    (private,) = holders
    assert private.stat().st_mode & 0o077 == 0
    folder = SweepFolder(private.parent)
    begun = History.of(Journal(folder.journal).read_new()).begun
    assert begun is not None
    assert "+slurm.environment.MY_KEY=***" in begun.overrides
    assert f"+slurm.environment.MY_KEY={OF_JOBS}" in overrides_at_begin(folder, begun).texts
    shutil.copytree(folder.path, tmp_path / "copy", ignore=shutil.ignore_patterns("private.json"))
    with pytest.raises(UsageError, match=r"private\.json no longer holds .*MY_KEY=\*\*\*"):
        overrides_at_begin(SweepFolder(tmp_path / "copy"), begun)
