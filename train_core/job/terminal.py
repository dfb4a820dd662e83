"""The messages about the checkpoint that a rank goes on from, on the terminal and not in its log alone."""

from __future__ import annotations

import logging
from collections.abc import Callable

LOGGERS = ("train_core.checkpoints.checkpoint", "train_core.checkpoints.checkpoint_folder")
"""The process that supervises warns of text and of weights itself, before a rank starts."""


def send_warnings(tell: Callable[[str], None]) -> None:
    """From now on these warnings of this process are told too, from whichever thread they come."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        # What writes to the log as long as there is no other handler: from here on there is one.
        if logging.lastResort is not None and not logger.hasHandlers():
            logger.addHandler(logging.lastResort)
        logger.addHandler(_Teller(tell))


class _Teller(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(record.getMessage())
