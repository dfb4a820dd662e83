"""The files of one run or of several, as UserRuns: which file is what, which belong together, what follows from all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from diagnose.readers.book import settle_steps
from diagnose.readers.columns.devices import fill_devices
from diagnose.readers.columns.megatron import fill_megatron
from diagnose.readers.columns.torchtitan import fill_torchtitan
from diagnose.readers.commands import read_script
from diagnose.readers.computed import compute_device, compute_sizes
from diagnose.readers.given import given_facts
from diagnose.readers.log import LogReader, LogStart
from diagnose.readers.said import Columns, SaidSettings, says
from diagnose.readers.text import KEY, STDIN, lines_of, name_of, whole_text
from diagnose.readers.trees import read_tree, tree_of
from diagnose.runs import Fact, SaidBy, UserRun

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".job", ".cmd")
TREES = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
SHEBANG = re.compile(r"#!.*\b(?:sh|bash|zsh)\b")


@dataclass
class ReadFile:
    """What one file says.

    Attributes:
        kind: `log`, `script` or the kind of a tree; of several files of a kind each may be of another run.
        starts: one, or as many as a log holds.
    """

    source: str
    kind: str
    starts: list[LogStart]


def read_runs(sources: Sequence[str | Path], overrides: Sequence[str] = ()) -> list[UserRun]:
    """The runs that files tell of: one, or as many as there are logs, or starts in a log, or scripts without a log.

    Args:
        sources: paths, and `-` for standard input: logs, launch scripts, configurations. One run may have several.
        overrides: `key=value` of the command line, believed before all files: dotted keys or columns.

    Raises:
        ConfigError: a file cannot be read or understood, or an override has no column.
    """
    given = given_facts(overrides)
    if not sources:
        raise ConfigError(
            KEY, "", "names no file", "Name a log, a launch script or a configuration, or - for standard input."
        )
    return [_settled(start, given) for start in _joined([_read(str(source)) for source in sources])]


def _read(source: str) -> ReadFile:
    suffix = Path(source).suffix.lower()
    if source != STDIN and suffix in TREES:
        return _read_tree(source, TREES[suffix])
    if source != STDIN and suffix in SCRIPTS:
        return _read_script(source)
    reader = LogReader(source, name_of(source))
    for number, text in lines_of(source, reader.is_dull):
        if number == 1 and source != STDIN and SHEBANG.match(text):
            return _read_script(source)
        reader.hear(number, text)
    return ReadFile(source, "log", reader.end())


def _read_script(source: str) -> ReadFile:
    run = UserRun(name_of(source))
    text = whole_text(source)
    if not text.strip():
        raise ConfigError(KEY, source, "is empty", "Name the script that starts the run.")
    read_script(run, source, text.replace("\r\n", "\n"))
    return ReadFile(source, "script", [LogStart(run)])


def _read_tree(source: str, kind: str) -> ReadFile:
    text = whole_text(source)
    content = tree_of(text, source, kind)
    if not isinstance(content, dict) or not content:
        raise ConfigError(KEY, source, "is empty" if not content else "is a list", "Name the configuration of a run.")
    run = UserRun(name_of(source))
    read_tree(run, content, source, text.splitlines(), SaidBy.FILE)
    return ReadFile(source, kind, [LogStart(run)])


def _joined(files: Sequence[ReadFile]) -> list[LogStart]:
    """The starts, each with what its other files say.

    Where there are as many files of a kind as runs, each run has its own, in their order; else all runs have all.
    """
    logs = [file for file in files if file.kind == "log"]
    others = [file for file in files if file.kind != "log"]
    if not logs:
        most = max(sum(file.kind == kind for file in others) for kind in {file.kind for file in others})
        logs = [ReadFile("", "", [LogStart(UserRun(""))]) for _ in range(most)]
    logs = _whole_logs(logs)
    for place, log in enumerate(logs):
        for file in others:
            kin = [each for each in others if each.kind == file.kind]
            if len(kin) != len(logs) or kin[place] is file:
                for start in log.starts:
                    _add(start.run, file.starts[0].run)
    return [start for log in logs for start in log.starts]


def _whole_logs(logs: list[ReadFile]) -> list[ReadFile]:
    """The logs; one that has steps and one that has arguments alone, or a job's .out and .err, are of one run."""
    if len(logs) == 2:
        one, two = logs
        stepless = [log for log in logs if not any(start.book.steps for start in log.starts)]
        is_pair = Path(one.source).stem == Path(two.source).stem and one.source != two.source
        if len(stepless) == 1 and len(stepless[0].starts) == 1:
            other = two if stepless[0] is one else one
            if (
                is_pair
                or not any(_tells_of_it(start.run) for start in other.starts)
                or not _tells_of_it(stepless[0].starts[0].run)
            ):
                for start in other.starts:
                    _add(start.run, stepless[0].starts[0].run)
                return [other]
    return logs


def _tells_of_it(run: UserRun) -> bool:
    """True if a log says what was run."""
    return any(not name.isupper() and not name.startswith(("device_", "nccl_")) for name in run.settings)


def _add(run: UserRun, other: UserRun) -> None:
    """Put what another file says of a run beside what is known."""
    names = [each for each in dict.fromkeys([*run.name.split(" + "), *other.name.split(" + ")]) if each]
    run.name, run.program = " + ".join(names), run.program or other.program
    for name, fact in other.settings.items():
        says(run, name, fact.value, fact.said_by, fact.at, fact.note)
    for kind, lines in other.marks.items():
        run.marks.setdefault(kind, []).extend(lines)
    run.memory += other.memory


FILLS: dict[str, Callable[[Columns], Any]] = {"megatron": fill_megatron, "torchtitan": fill_torchtitan}


def _settled(start: LogStart, given: dict[str, Fact]) -> UserRun:
    """The run with its columns filled, from what is said, then from what follows, and its steps."""
    run = start.run
    run.columns |= given
    columns = Columns(run)
    family = family_of(run)
    fill_devices(columns)
    if family is not None:
        FILLS[family](columns)
    compute_device(columns, start.book.steps)
    compute_sizes(columns, start.book.steps)
    if family is not None:  # what was computed may say more
        FILLS[family](columns)
    if run.trainer is not None:
        columns.take("implementation", run.trainer)
    settle_steps(run, start.book)
    return run


def family_of(run: UserRun) -> str | None:
    """Whose words the settings of a run are; None where nothing tells it."""
    settings = SaidSettings(run)
    if run.program in FILLS:
        return run.program
    if re.search(r"pretrain_\w+\.py|megatron", settings.text("program")):
        return "megatron"
    if "torchtitan" in settings.text("program"):
        return "torchtitan"
    if settings.is_known(
        "tensor_model_parallel_size",
        "model_parallel_size",
        "pipe_parallel_size",
        "transformer_impl",
        "micro_batch_size",
    ):
        return "megatron"
    if any(name.startswith(("training.", "parallelism.", "activation_checkpoint.")) for name in run.settings):
        return "torchtitan"
    return "megatron" if settings.is_known("num_attention_heads") and settings.is_known("seq_length") else None
