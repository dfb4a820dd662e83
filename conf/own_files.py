"""Files of the packages as a path, also where a job imports the packages from an archive."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]


@cache
def at_hand(name: str) -> Path:
    """A file or folder of the packages: itself, or a private copy of an archive's that ends with this process."""
    if ROOT.is_dir():
        return ROOT / name
    place = tempfile.mkdtemp(prefix="trisweep-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with ZipFile(ROOT) as archive:
        archive.extractall(place, (each for each in archive.namelist() if each.startswith(name)))
    return Path(place, name)
