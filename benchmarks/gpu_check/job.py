"""One job of the check, as a process of its own: `python -m benchmarks.gpu_check.job FOLDER`.

A job that runs in its own process can be killed, stopped or limited from outside as a user's job would be.

NCCL refuses two ranks of one host on one GPU, because their kernels wait for each other. But a GPU takes turns with its
processes. So each rank that shares a GPU says that it is a host of its own, and sends over a socket.
"""

from __future__ import annotations

import argparse
import os
import resource
from pathlib import Path

import psutil

from train_core.job.trial import run_trial_here

SHARES = "TRISWEEP_CHECK_SHARES_GPUS"
SHARING = {SHARES: "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
"""The variables of a job whose ranks share GPUs."""

if SHARES in os.environ:  # a rank is a process of its own, which imports this module when it starts
    os.environ["NCCL_HOSTID"] = f"rank-{os.getpid()}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.job", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the trial")
    parser.add_argument("--devices", type=int, nargs="*", default=[], help="GPUs; none computes on the CPU")
    parser.add_argument("--seconds", type=float, required=True, help="the time limit")
    parser.add_argument("--memory", type=int, help="bytes that each process may have beside what it begins with")
    given = parser.parse_args()
    if given.memory is not None:
        _limit_memory(given.memory)
    run_trial_here(given.folder, tuple(given.devices), given.seconds)


def _limit_memory(num_bytes: int) -> None:
    """Let the kernel refuse this process and the ranks it forks more address space, as a full device would."""
    import train_core.job.rank  # noqa: F401  (torch's libraries alone take gigabytes of addresses)

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + num_bytes, most))


if __name__ == "__main__":
    main()
