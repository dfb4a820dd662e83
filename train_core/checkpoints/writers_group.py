"""The group in which the threads that write a checkpoint talk, beside the collectives of the training."""

from __future__ import annotations

import os
import resource
from datetime import timedelta

import torch.distributed as dist

LAZILY = "TORCH_GLOO_LAZY_INIT"
WRITING = timedelta(days=1)
"""The time that torch lets a rank wait for others to write their share: a disk, however slow, is no reason to
give up. The watchdog knows more; see `progress`."""

OTHER_FILES = 1024
"""So many files and sockets a rank may need besides."""


def group_of_writers(num_ranks: int) -> dist.ProcessGroup:
    """A group whose ranks connect when they first have something to say to each other.

    Gloo otherwise connects every rank to every other, which on a thousand of them is more sockets than a process may
    have. All writers talk with the first one, and else with a few.
    """
    allow_sockets(num_ranks)
    chosen = os.environ.get(LAZILY)
    os.environ.setdefault(LAZILY, "1")  # torch reads it when it makes a group, and knows no other way to be told
    try:
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=WRITING)
    finally:
        # The groups of the training connect before the first step, so that none of its time goes into that.
        if chosen is None:
            del os.environ[LAZILY]
    return group


def allow_sockets(num_ranks: int) -> None:
    """Raise this process's limit of open files, as far as the system lets it, to a socket for every rank."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_ranks + OTHER_FILES
    if num_ranks > limit // 2:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, min(needed, most)), most))
