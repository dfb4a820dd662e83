"""Values that live as long as the command, and of which there may be a million."""

from __future__ import annotations

import gc
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
