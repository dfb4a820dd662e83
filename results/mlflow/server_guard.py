"""A program that ends a server, and all that the server has started, once whoever asked for it is gone.

The arguments are the server's command. Standard input is a pipe whose other end the asking process holds and never
writes to. When that process ends, even by `kill -9`, the pipe does too.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

STOP_SECONDS = 10.0
POLL_SECONDS = 0.5


def guard(command: Sequence[str]) -> int:
    """Run the command until it ends, or until standard input does; returns its exit code."""
    # In a session of its own, because it starts workers, which must all end with it.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the pipe alone says when to end
    while server.poll() is None and not _is_over():
        pass
    stop(server)
    return server.wait()


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the whole session: ask first, and then kill."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # The leader of a session has its number, also after it has ended while its workers run on.
        _signal_session(server.pid, number)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            server.poll()  # one that has ended is a member of its session until it is asked how
            if not _signal_session(server.pid, 0):
                return
            time.sleep(0.05)


def _signal_session(session: int, number: int) -> bool:
    """Signal the session; return whether anybody was left to get it."""
    try:
        os.killpg(session, number)
    except ProcessLookupError:
        return False
    return True


def _is_over() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
    # A pipe is readable without a byte in it only when its other end is closed.
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
