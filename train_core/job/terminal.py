"""What a rank says of the checkpoint that it goes on from reaches the terminal, and not its log alone."""

from __future__ import annotations

import logging
import threading
from multiprocessing.connection import Connection

LOGGERS = ("train_core.checkpoints.checkpoint", "train_core.checkpoints.checkpoint_folder")
"""The process that supervises warns of text and of weights itself, before a rank starts."""


def send_warnings(sender: Connection) -> None:
    """From now on these warnings of this process's training thread go through the pipe too, as text."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(_Sender(sender))
        if logging.lastResort is not None:  # what writes to the log as long as there is no other handler
            logger.addHandler(logging.lastResort)


class _Sender(logging.Handler):
    def __init__(self, sender: Connection) -> None:
        super().__init__(logging.WARNING)
        self.sender = sender

    def emit(self, record: logging.LogRecord) -> None:
        # The thread that trains sends its steps here, and two threads must not send at the same time.
        if record.thread == threading.main_thread().ident:
            self.sender.send(record.getMessage())
