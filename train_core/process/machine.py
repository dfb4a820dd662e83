"""The machine that a process runs on, and where the ranks of a Slurm job meet. No torch."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from conf.errors import UsageError

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


FIRST_PORT, NUM_PORTS = 15000, 15000  # below the ephemeral range of Linux, which starts at 32768


def first_host(node_list: str) -> str:
    """The first name of a Slurm node list: `gpu[007-009,12],login1` -> `gpu007`."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", node_list)
    if match is None:
        raise UsageError(f"SLURM_JOB_NODELIST = {node_list!r} names no node", "Start the ranks with srun.")
    prefix, number, suffix = match.groups()
    return f"{prefix}{number or ''}{suffix}"


def port_of_step(environment: Mapping[str, str]) -> int:
    """The port at which the ranks of the surrounding srun meet. Steps of one job may share a node, as elements may."""
    job_id = environment.get("SLURM_JOB_ID_HET_GROUP_0") or environment["SLURM_JOB_ID"]
    step_id = environment.get("SLURM_STEP_ID", "0")
    return slurm_port(int(job_id), int(environment.get("SLURM_ARRAY_TASK_ID", "0")) + int(step_id))


def slurm_port(job_id: int, share: int) -> int:
    """A port that all ranks of a job compute alike, and that neighbouring jobs on a node do not share.

    Args:
        share: number of the element of the array, or of the step of the job.
    """
    return FIRST_PORT + (job_id + 131 * share) % NUM_PORTS


def reachable_host(node_list: str, fallback: str | None) -> str:
    """The first host if its name resolves here, else the address of the node where srun was started (the first one)."""
    host = first_host(node_list)
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror:
        return fallback or "127.0.0.1"
    return host
