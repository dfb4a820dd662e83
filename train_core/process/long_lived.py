"""Values that live as long as the process, and of which there may be a million; importing torch makes many of them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived() -> Iterator[None]:
    """Keep what is made in the block out of Python's garbage collection, which looks for none meanwhile.

    It would look at everything again and again, which takes most of the time where thousands of trials are read.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def importing_torch() -> Iterator[None]:
    """Import torch, and what needs it, within this. Where torch has been imported already, nothing is different.

    It takes a third less time: an import makes hundreds of thousands of objects that stay, and Python looks through all
    of them again and again for garbage, also when the process ends, and forks that do so copy the memory which they
    share. Frozen, they are left out of all later collections.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    try:
        with long_lived():
            yield
    finally:
        gc.freeze()
