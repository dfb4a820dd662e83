"""Turns the steps read from a log into a `Performance`. Operations are counted by our formula, as for every trial.

The identity of the program's code is a digest of the scripts that its command names and of what they import.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import socket
import statistics
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from conf.own_files import at_hand
from conf.plan.experiment import Experiment
from conf.plan.trainer_call import JOB_NAMES, call_of
from costs import FLOPS_FORMULA, IMPLEMENTATIONS, executed_flops, model_flops, num_parameters
from costs.flops_rates import flops_fields
from launcher.command_trainer.process import HUGGINGFACE_STARTER
from train_core.process.git_sha import git_sha
from train_core.trial.measurement import LOSS, NOT_KNOWN, Environment, Performance, StepMetrics

OF_THE_FILE = "the cluster file, not measured"
"""The source of a peak where our own trainer would measure it in the same run, as on a CPU."""

IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]+))", re.MULTILINE
)
"""The module, the names, or both in one, of an import."""
WORD = re.compile(r"\w[.\w]*")
MOST_LISTED = 100_000
"""The steps of a longer log are numbered by those that tell of a loss alone."""
MOST_BYTES = 2**20
"""What is larger is no script: an interpreter, or data."""


def devices_in_use(experiment: Experiment) -> int:
    """GPUs, or on CPUs the cores, which several ranks of a node may share."""
    size = experiment.parallel.world_size
    if experiment.cluster.device.kind == "gpu":
        return size
    return experiment.num_nodes * min(experiment.tasks_per_node, len(os.sched_getaffinity(0)))


def performance_of(
    experiment: Experiment,
    steps: Sequence[StepMetrics],
    tflops: Mapping[int, float],
    memory_bytes: int | None,
    untimed: Collection[int] = (),
) -> Performance | None:
    """The measurement over the steps after warm-up; None where there is no such step.

    Args:
        untimed: the steps whose time was not printed, which count where no other does.
        tflops: of single steps and of one device, as the program printed them.
        memory_bytes: the most that any rank is known to have used.
    """
    timed = [step for step in steps if not step.warmup]
    if not timed:
        return None
    told = [step for step in timed if step.step not in untimed]
    timed = told or timed
    times = [step.step_seconds for step in timed]
    batch, num_devices = experiment.batch.global_batch_size, devices_in_use(experiment)
    seconds = statistics.median(times)
    needed = model_flops(experiment.model, batch)
    executed = executed_flops(experiment, IMPLEMENTATIONS[experiment.trainer.costs_of])
    declared = experiment.cluster.device.peak_source
    printed = [tflops[step.step] for step in timed if step.step in tflops]
    recorded = {step.step for step in steps}
    num_steps = experiment.training.num_steps
    if experiment.trainer.log.figures:  # it makes as many steps as it likes, and not each tells of a loss
        steps = [step for step in steps if LOSS in step.figures]
        recorded, last = {step.step for step in steps}, steps[-1].step if steps else 0
        num_steps = last if last <= MOST_LISTED else 0
    return Performance(
        step_seconds=seconds,
        step_seconds_min=min(times),
        step_seconds_max=max(times),
        num_timed_steps=len(timed),
        num_devices=num_devices,
        tokens_per_second=batch * experiment.model.seq_length / seconds,
        **flops_fields(needed, executed, seconds * num_devices, experiment.peak_flops_per_second),
        flops_formula=FLOPS_FORMULA,
        peak_source=OF_THE_FILE if declared == "measured" else declared,
        peak_memory_bytes=() if memory_bytes is None else (memory_bytes,),
        losses=tuple(step.loss for step in steps),
        unrecorded_steps=tuple(n for n in range(1, num_steps + 1) if n not in recorded),
        final_loss=steps[-1].loss if steps else math.nan,
        num_parameters=num_parameters(experiment.model),
        is_timed=bool(told),
        tflops_as_printed=statistics.median(printed) if printed else None,
    )


def environment_of(experiment: Experiment, program_code: str) -> Environment:
    """Return where and with which code the program ran. Only itself knows its versions of torch and Python."""
    device = experiment.cluster.device
    on_cpu = device.kind == "cpu"
    return Environment(
        hostname=socket.gethostname(),
        device=platform.processor() or platform.machine() if on_cpu else device.name,
        backend=experiment.trainer.name,
        torch_version=NOT_KNOWN,
        python_version=NOT_KNOWN,
        git_sha=git_sha(),
        trainer_code=program_code,
        num_cores=os.cpu_count() or 1,
    )


def program_code(words: Sequence[str], working_dir: Path) -> str:
    """Twelve digits of the program's scripts, and of the modules beside them that they import; empty without a script.

    A script is a word that ends with .py or whose file begins with `#!`, or `-m MODULE`. Installed packages do not
    count, nor what is imported by a name that a script computes.
    """
    contents: dict[Path, bytes] = {}
    for script in _scripts(words, working_dir):
        contents |= _with_imports(script, working_dir)
    # In an order of contents: the same program in another folder is the same code.
    digests = sorted(hashlib.sha256(content).digest() for content in contents.values() if content)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:12] if digests else ""


def present_code(experiment: Experiment, folder: Path) -> str:
    """Return what `program_code` says now of the program of a trial that was measured in the folder."""
    trainer = experiment.trainer
    # The names that may stand for scripts have the values of a job; the others are numbers and an address.
    python = trainer.python or sys.executable
    scripts = {
        "trial_folder": str(folder.absolute()),
        "python": python,
        "huggingface_starter": str(at_hand(HUGGINGFACE_STARTER)),
    }
    words = call_of(trainer, experiment, {**dict.fromkeys(JOB_NAMES, "0"), **scripts}).words
    starter = (python,) if trainer.start == "torchrun" else ()
    return program_code((*trainer.prefix, *starter, *words), Path(trainer.working_dir or "").expanduser().absolute())


def _scripts(words: Sequence[str], working_dir: Path) -> Iterator[Path]:
    for before, word in zip(("", *words), words, strict=False):
        if before == "-m":
            yield from _files_of(word, working_dir)
            yield from _files_of(f"{word}.__main__", working_dir)
        elif word.endswith(".py") or _content(working_dir / word).startswith(b"#!"):
            yield working_dir / word


def _with_imports(script: Path, working_dir: Path) -> dict[Path, bytes]:
    """The contents of the script and, of what it imports, of the files beside it or below the working folder."""
    contents, seen, waiting = dict[Path, bytes](), set[tuple[str, Path]](), [script]
    while waiting:
        path = waiting.pop()
        if path in contents:
            continue
        contents[path] = _content(path)
        imported = _imported_names(path, contents[path]) if path.suffix == ".py" else ()
        named = {(name, folder) for name, own in imported for folder in own or (script.parent, working_dir)}
        waiting += [file for name, folder in named - seen for file in _files_of(name, folder)]
        seen |= named
    return contents


def _imported_names(module: Path, content: bytes) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """The dotted names that a module imports, each with the folder that a relative one begins at.

    A line of a text that reads like an import counts as one, which is harmless; a syntax tree would take ten times as
    long, seconds of a large program.
    """
    for origin, names, plain in IMPORT.findall(content.decode(errors="replace")):
        dotted = origin.lstrip(".")
        level = len(origin) - len(dotted)
        folder = (module.parents[min(level, len(module.parents)) - 1],) if level else ()
        for name in WORD.findall(names or plain):
            yield f"{dotted}.{name}".lstrip("."), folder


def _files_of(name: str, folder: Path) -> Iterator[Path]:
    """The files that `import a.b.c` would run, as far as they are below the folder."""
    for part in name.split("."):
        if (file := folder / f"{part}.py").is_file():
            yield file
        folder = folder / part
        if (file := folder / "__init__.py").is_file():
            yield file


def _content(path: Path) -> bytes:
    """The content of a script; empty of what is none, or cannot be read."""
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= MOST_BYTES else b""
    except (OSError, ValueError):  # a word of a command need not be a path at all
        return b""
