"""The machine that a process runs on."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Tells machines apart where host names do not: containers of one machine have names of their own, and one boot."""


def machine_id() -> str:
    """Equal for all processes of one machine, and different on another."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else "this"


def this_user() -> str:
    """The user's name; the number where the system knows no name for it, as in a container that was given one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the second from Python 3.13 on
        return str(os.getuid())


def this_node() -> str:
    """The name by which Slurm knows this machine, else its own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
