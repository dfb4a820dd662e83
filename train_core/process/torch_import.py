"""Importing torch without looking for garbage meanwhile, which takes a third of the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from train_core.process.long_lived import long_lived


@contextmanager
def importing_torch() -> Iterator[None]:
    """Import torch, and what needs it, within this. Where torch has been imported already, nothing is different.

    An import makes hundreds of thousands of objects that stay. Python looks through all of them again and again for
    garbage, also when the process ends, and forks that do so copy the memory which they share. Frozen, they are left
    out of all later collections.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    try:
        with long_lived():
            yield
    finally:
        gc.freeze()
