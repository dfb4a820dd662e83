"""Root as a user whom permissions bind, for tests of files that may not be read or written."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

OVERRIDES = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
VERSION = 0x20080522  # of the structures that the kernel takes: two sets of three words


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Give up, in this thread and while the block lasts, root's right to read and write what permissions forbid."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, held = (ctypes.c_uint32 * 2)(VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0, ctypes.get_errno()
    before = held[0]
    held[0] &= ~OVERRIDES
    assert libc.capset(header, held) == 0, ctypes.get_errno()
    try:
        yield
    finally:
        held[0] = before
        assert libc.capset(header, held) == 0, ctypes.get_errno()
