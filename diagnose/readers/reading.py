"""The files of one run or of several, as UserRuns: which file is what, which belong together, what follows from all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import ConfigError
from conf.folders import at_home
from diagnose.readers.bars import add_summary, read_trainer_state
from diagnose.readers.book import StepBook, settle_steps
from diagnose.readers.columns.devices import fill_devices
from diagnose.readers.columns.named_models import fill_named
from diagnose.readers.commands import read_flags, read_script
from diagnose.readers.computed import compute_device, compute_sizes
from diagnose.readers.families import family_of
from diagnose.readers.folders import runs_in
from diagnose.readers.given import chosen_trainer, given_facts
from diagnose.readers.log import LogReader, LogStart
from diagnose.readers.python_files import read_python
from diagnose.readers.records import read_table, record_of
from diagnose.readers.said import Columns, says
from diagnose.readers.text import KEY, STDIN, at, lines_of, name_of, whole_text
from diagnose.readers.trees import TREES, listed_commands, read_tree, scripts_in, tree_of, unwrapped
from diagnose.runs import Fact, SaidBy, UserRun
from sweeps.table.layout import USUAL_VOCABULARY

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".job", ".cmd")
KINDS = {
    "model": ("model_type", "architectures", "num_hidden_layers"),
    "deepspeed": ("zero_optimization", "train_micro_batch_size_per_gpu", "gradient_clipping"),
    "accelerate": ("distributed_type",),
}
"""Configurations that stand beside another one of the same form, and the keys that tell them."""
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
    given, trainer = given_facts(overrides), chosen_trainer(overrides)
    if not sources:
        raise ConfigError(
            KEY, "", "names no file", "Name a log, a launch script or a configuration, or - for standard input."
        )
    return [_settled(start, given) for start in _joined([_read(str(source), trainer) for source in sources])]


def _read(source: str, trainer: str) -> ReadFile:
    suffix = Path(source).suffix.lower()
    if source != STDIN and (folder := at_home(source, KEY)).is_dir() and (starts := runs_in(folder)):
        return ReadFile(source, "log", starts)
    if source != STDIN and suffix in TREES:
        return _read_tree(source, TREES[suffix])
    if source != STDIN and suffix in SCRIPTS:
        return _read_script(source)
    if source != STDIN and suffix == ".py":
        run = UserRun(name_of(source))
        read_python(run, source, whole_text(source))
        return ReadFile(source, "python", [LogStart(run)])
    if source != STDIN and suffix == ".csv":
        start = LogStart(UserRun(name_of(source)))
        read_table(start.run, start.book, source)
        return ReadFile(source, "state", [start])
    reader = LogReader(source, name_of(source), trainer)
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
    content = unwrapped(tree_of(text, source, kind))
    if not isinstance(content, dict) or not content:
        raise ConfigError(KEY, source, "is empty" if not content else "is a list", "Name the configuration of a run.")
    start, lines = LogStart(UserRun(name_of(source))), text.splitlines()
    history = content.pop("log_history", None)
    if isinstance(arguments := content.pop("args", None), list):  # of wandb-metadata.json
        words = [str(content.get("program", "")), *map(str, arguments)]
        read_flags(start.run, [(word, at(source, None, word)) for word in words])
    elif arguments is not None:
        content["args"] = arguments
    for words in listed_commands(content):
        read_flags(start.run, [(word, at(source, None, word)) for word in words])
    for text_of_script in scripts_in(content):
        place = next((n for n, line in enumerate(lines, 1) if text_of_script.split("\n")[0].strip() in line), 1)
        read_script(start.run, source, text_of_script, place)
    step, found = record_of(content)
    if history is None and step is not None and found.keys() - {"loss", "elapsed"}:  # wandb-summary.json
        start.book.add(step, found, at(source, None), "", "")
    read_tree(start.run, content, source, lines, SaidBy.FILE)
    if isinstance(history, list):
        read_trainer_state(start.run, start.book, history, source, lines)
    kinds = (name for name, keys in KINDS.items() if any(key in content for key in keys))
    return ReadFile(source, "state" if history is not None else next(kinds, kind), [start])


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
                    _add(start, file.starts[0])
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
                    _add(start, stepless[0].starts[0])
                return [other]
    return logs


def _tells_of_it(run: UserRun) -> bool:
    """True if a log says what was run."""
    return any(not name.isupper() and not name.startswith(("device_", "nccl_")) for name in run.settings)


def _add(start: LogStart, beside: LogStart) -> None:
    """Put what another file says of a run beside what is known."""
    run, other = start.run, beside.run
    if not start.book.steps:
        start.book = beside.book
    names = [each for each in dict.fromkeys([*run.name.split(" + "), *other.name.split(" + ")]) if each]
    run.name, run.program = " + ".join(names), run.program or other.program
    for name, fact in other.settings.items():
        says(run, name, fact.value, fact.said_by, fact.at, fact.note)
    for kind, lines in other.marks.items():
        run.marks.setdefault(kind, []).extend(lines)
    run.memory += other.memory


def _take_printed_batch(columns: Columns, book: StepBook) -> None:
    """Put the batch that most lines about steps print: of a run that says no other, it is no guess."""
    printed = Counter(step.found["batch"] for step in book.steps if step.found.get("batch"))
    if printed:
        ((batch, _),) = printed.most_common(1)
        at = next(step.at for step in book.steps if step.found.get("batch") == batch)
        columns.computed("global_batch", int(batch), at, "as lines about steps print it")


def _settled(start: LogStart, given: dict[str, Fact]) -> UserRun:
    """The run with its columns filled, from what is said, then from what follows, and its steps."""
    run, book = start.run, start.book
    run.columns |= given
    book.settle_units()
    family = family_of(run)
    columns = Columns(run, family.sections if family else ())
    _take_printed_batch(columns, book)
    for _ in range(2):  # what was computed may say more
        if family is not None:
            family.fill(columns)
        fill_named(columns)
        fill_devices(columns)
        compute_device(columns, book.steps)
        compute_sizes(columns, book.steps)
    if columns.count("layers"):
        columns.assumed("vocab", USUAL_VOCABULARY, "nobody says it, and GPT-2's is padded to it")
    if run.trainer is not None:
        columns.take("implementation", run.trainer)
    add_summary(run, book)
    settle_steps(run, book)
    return run
