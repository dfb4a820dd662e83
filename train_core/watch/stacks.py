"""The stacks of this process's threads, as far as the training is concerned."""

from __future__ import annotations

import sys
import threading
import traceback
from types import FrameType

WORK = ("/train_core/", "/torch/autograd/")
MAX_CALLS = 12
"""Of every thread but the training's own, whose whole stack is shown."""


def stacks_of_work(training: int) -> str:
    """The stack of the training thread, and of every other thread that is inside the trainer or torch's autograd.

    On a GPU backward passes run on threads of autograd's own, and the training thread only waits for them.

    Args:
        training: the identifier of the training thread.
    """
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stack = "".join(traceback.format_stack(frames.pop(training))) if training in frames else ""
    frames.pop(threading.get_ident(), None)  # whoever asks is a watchdog, which is always inside the trainer
    for ident, frame in frames.items():
        if _is_at_work(frame):
            calls = traceback.format_stack(frame)[-MAX_CALLS:]
            stack += f"Its thread {names.get(ident, 'of autograd')} stands here:\n{''.join(calls)}"
    return stack


def _is_at_work(frame: FrameType) -> bool:
    return any(part in call.f_code.co_filename for call, _ in traceback.walk_stack(frame) for part in WORK)
