"""Addresses on this machine: which port nobody listens on, and what a page says."""

from __future__ import annotations

import random
import socket
import urllib.request

PATIENCE_SECONDS = 90.0
OURS = range(10_000, 20_000)
"""Ports that Linux gives to nobody by itself: one of the ephemeral ports could be an outgoing connection's before a
server, which takes seconds to start, listens on it."""


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(OURS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=90) as answer:
        return str(answer.read().decode())
