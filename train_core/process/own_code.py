"""How a process of our own finds this very code, whatever lies in its folder or in the user's PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path

from train_core.process.git_sha import ROOT


def variables_of(code: Path = ROOT) -> dict[str, str]:
    """The variables by which a Python imports the packages in `code`, and others from where the user has them.

    Our packages have common names: somebody's own `conf` may be in the current folder, which PYTHONSAFEPATH leaves out,
    or in their PYTHONPATH, before which ours therefore comes.
    """
    path = os.pathsep.join([str(code), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
