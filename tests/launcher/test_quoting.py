"""No value of the configuration runs anything in a job's shell: the text for sbatch is given to a real bash."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import RecordOf
from tests.launcher.conftest import SlurmOf
from tests.launcher.slurm.requested import requested

PAYLOADS = {
    "semicolon": "x; touch PWNED",
    "dollar": "x$(touch PWNED)",
    "backtick": "x`touch PWNED`",
    "double quote": 'x"; touch PWNED; echo "',
    "single quote": "x'; touch PWNED; echo '",
    "newline": "x\ntouch PWNED",
    "pipe": "x | touch PWNED & touch PWNED",
    "redirection": "x > PWNED",
    "glob": "* ~ ${HOME} \\",
}
KEYS = ("partition", "account", "qos", "constraint", "gpu_type", "container_prefix", "python")
COLLECTIONS: dict[str, Any] = {
    "srun_args": lambda payload: (payload,),
    "environment": lambda payload: {"A": payload},
    "extra_sbatch": lambda payload: {"comment": payload, "mail-user": payload},
    "extra_sbatch name": lambda payload: {payload: "1"},
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("key", [*KEYS, *COLLECTIONS, "output_dir"])
def test_a_value_runs_nothing(key: str, payload: str, record_of: RecordOf, slurm_of: SlurmOf, tmp_path: Path) -> None:
    settings, folder = slurm_of("slurm.max_array_size=5"), Path("/shared/runs")
    if key == "output_dir":
        folder = Path(f"/shared/{payload.replace('/', '')}")
    else:
        value = COLLECTIONS[key](payload) if key in COLLECTIONS else payload
        settings = settings.model_copy(update={key.split()[0]: value})
    record = record_of([{"parallel.world_size": 8}], "cluster=frontier", "precision=bf16")
    try:
        (request,) = requested(Sweep(SweepFolder(folder / "sweep"), record), settings)
    except ConfigError as refusal:
        assert str(refusal).startswith(("slurm.", "output_dir"))  # noqa: PT017 (either end is right)
        return
    run = _run(request.sbatch, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "job.sh"], run
    assert "srun was called" in run.stdout


def _run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a job, with an srun that only says that it was called."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "srun").write_text("#!/bin/sh\necho srun was called\n")
    (tools / "srun").chmod(0o755)
    # There is no code here that the job could find unchanged; it goes on after it has said so.
    (folder / "job.sh").write_text(text.replace(">&2; exit 1", ">&2"))
    environment = {"PATH": f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(folder)}
    return subprocess.run(
        ["bash", "job.sh"], cwd=folder, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
