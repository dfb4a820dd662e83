"""A hang inside a backward pass shows in a thread of autograd's, and idle threads show nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from train_core.watch.watchdog import MAX_CALLS, stacks_of_work

STARTED_BY_AUTOGRAD = """
def backward(depth):
    if depth:
        return backward(depth - 1)
    begun.set()
    go_on.wait()
"""


def test_the_training_thread_and_all_that_work_are_shown_and_idle_ones_are_not() -> None:
    begun, go_on, asked = threading.Event(), threading.Event(), list[str]()
    names: dict[str, Callable[[int], None] | threading.Event] = {"begun": begun, "go_on": go_on}
    exec(compile(STARTED_BY_AUTOGRAD, "/site-packages/torch/autograd/function.py", "exec"), names)
    with ThreadPoolExecutor(1, "idle") as idle:
        idle.submit(lambda: None).result()
        backward = threading.Thread(target=names["backward"], args=(20,), name="device-0")  # type: ignore[arg-type]
        backward.start()
        begun.wait()
        training = threading.get_ident()
        watchdog = threading.Thread(target=lambda: asked.append(stacks_of_work(training)), name="watchdog")
        watchdog.start()
        watchdog.join()
        go_on.set()
        backward.join()
    (told,) = asked
    own, _, other = told.partition("Its thread device-0 stands here:\n")
    assert "in test_the_training_thread_and_all_that_work" in own
    assert other.count("  File ") <= MAX_CALLS
    assert "Its thread" not in other
