"""Where the ranks of a Slurm job meet: on its first node, at a port that follows from the job's number. No torch."""

from __future__ import annotations

import re
import socket

from conf.errors import UsageError

FIRST_PORT, NUM_PORTS = 15000, 15000  # below the ephemeral range of Linux, which starts at 32768


def first_host(node_list: str) -> str:
    """The first name of a Slurm node list: `gpu[007-009,12],login1` -> `gpu007`."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", node_list)
    if match is None:
        raise UsageError(f"SLURM_JOB_NODELIST = {node_list!r} names no node", "Start the ranks with srun.")
    prefix, number, suffix = match.groups()
    return f"{prefix}{number or ''}{suffix}"


def slurm_port(job_id: int, array_task_id: int) -> int:
    """A port that all ranks of a job compute alike, and that neighbouring jobs on a node do not share."""
    return FIRST_PORT + (job_id + 131 * array_task_id) % NUM_PORTS


def reachable_host(node_list: str, fallback: str | None) -> str:
    """The first host if its name resolves here, else the address of the node where srun was started (the first one)."""
    host = first_host(node_list)
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror:
        return fallback or "127.0.0.1"
    return host
