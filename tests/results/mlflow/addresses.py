"""Addresses on this machine: which port nobody listens on, and what a page says."""

from __future__ import annotations

import socket
import urllib.request

PATIENCE_SECONDS = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=90) as answer:
        return str(answer.read().decode())
