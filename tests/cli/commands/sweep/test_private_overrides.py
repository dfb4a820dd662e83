"""What variables of jobs are set to is in no record, and whoever goes on with the sweep has it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import UsageError
from launcher.control.private_overrides import overrides_at_begin
from sweeps.folder.history import History
from sweeps.folder.journal import Journal
from sweeps.trial import SweepFolder
from tests.cli.conftest import Command

SECRET = "s3cr3t"
BEGUN = ("smoke", "--here", f"+slurm.environment.WANDB_API_KEY={SECRET}", "sweep.max_trials=1")


@pytest.mark.slow
def test_no_file_of_a_sweep_but_one_holds_the_value_and_it_is_private(trisweep: Command, tmp_path: Path) -> None:
    done = trisweep("sweep", *BEGUN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = tmp_path / "runs"
    holders = [path for path in runs.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert [path.name for path in holders] == ["private.json"]
    (private,) = holders
    assert private.stat().st_mode & 0o077 == 0
    folder = SweepFolder(private.parent)
    begun = History.of(Journal(folder.journal).read_new()).begun
    assert begun is not None
    assert "+slurm.environment.WANDB_API_KEY=***" in begun.overrides
    assert f"+slurm.environment.WANDB_API_KEY={SECRET}" in overrides_at_begin(folder, begun).texts
    private.unlink()
    with pytest.raises(UsageError, match=r"WANDB_API_KEY=\*\*\* are not in .*private.json"):
        overrides_at_begin(folder, begun)
