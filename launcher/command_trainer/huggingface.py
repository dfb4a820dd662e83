"""Starts a program that uses Hugging Face's Trainer, and has every Trainer in it print what a sweep measures.

Run as a script in the program's own environment, `huggingface.py train.py --flags ...`, so that it imports nothing of
this package, and the program needs no change.
"""

from __future__ import annotations

import os
import resource
import runpy
import sys
import time
from pathlib import Path

import torch
import transformers.trainer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

END = "the program has trained and ended"
"""Printed when the program has ended: the Trainer's own end comes before weights are saved."""

PRINTED = {"loss": "loss", "grad_norm": "gradient norm", "learning_rate": "learning rate"}
"""Values of the Trainer's log, and the words before them in a line."""


class StepLines(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Prints a line for each step that the Trainer logs: its number, its seconds, its loss, and the memory in use.

    A step begins where the one before it ended, so that waiting for data counts; logging, evaluating and saving do not.
    """

    def __init__(self) -> None:
        self._begun, self._seconds, self._memory_gib = 0.0, 0.0, 0.0

    def on_train_begin(self, *_: object, **__: object) -> None:
        """The first step begins."""
        self._begun = time.perf_counter()

    on_save = on_evaluate = on_train_begin

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Time the step that has ended; every rank but the first, which prints the step, says only its memory."""
        # A device computes beside the program, which would otherwise be timed while it only hands out work.
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self._seconds, self._begun = now - self._begun, now
        if not state.is_world_process_zero and (memory := _peak_memory_gib()) > self._memory_gib:
            self._memory_gib = memory
            print(f"memory {memory:.3f} GiB", flush=True)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        """Print the step. The Trainer's last log, of the whole training, has no loss of a step."""
        if state.is_world_process_zero and logs and "loss" in logs:
            words = [f"{name} {float(logs[key]):.6g}" for key, name in PRINTED.items() if key in logs]
            step = f"step {state.global_step}/{state.max_steps} time {self._seconds:.6f} s"
            print(step, *words, f"memory {_peak_memory_gib():.3f} GiB", flush=True)
        self._begun = time.perf_counter()


def _peak_memory_gib() -> float:
    """The most that this rank has used: of its device, or on a CPU the resident memory of its process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB


def run_program(words: list[str]) -> None:
    """Run a script, or with `-m` a module, as Python would, with the callback in each of its Trainers.

    Raises:
        SystemExit: the program left with it, perhaps well.
    """
    callbacks: list[type[TrainerCallback]] = transformers.trainer.DEFAULT_CALLBACKS
    callbacks.append(StepLines)
    try:
        _run(words)
    except SystemExit as left:
        if left.code in (None, 0):
            _print_end()
        raise
    _print_end()


def _run(words: list[str]) -> None:
    if words[0] == "-m":
        sys.path[0], sys.argv = str(Path.cwd()), words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(words[0]).resolve().parent), words
        runpy.run_path(words[0], run_name="__main__")


def _print_end() -> None:
    if os.environ.get("RANK", "0") == "0":
        print(END, flush=True)


if __name__ == "__main__":
    run_program(sys.argv[1:])
