"""Lines of a log beside those about steps: memory, timers, sentences about the configuration, dictionaries, marks."""

from __future__ import annotations

import re
from collections.abc import Callable

from diagnose.readers.columns.others import DTYPES, RECOMPUTES
from diagnose.readers.columns.others import NAMES as OTHER_NAMES
from diagnose.readers.formats import PAIR
from diagnose.readers.marks import WORDS as MARK_WORDS
from diagnose.readers.marks import kinds_of, mark
from diagnose.readers.printed import REPR, SENTENCE_WORDS, read_reprs, read_sentences, read_variables
from diagnose.readers.said import says
from diagnose.readers.steps import read_number
from diagnose.readers.text import rank_of
from diagnose.readers.trees import printed_tree, read_tree
from diagnose.runs import LoggedMemory, LogLine, SaidBy, UserRun

OF_MEMORY = re.compile(r"memory \(MB\) \| (.*)")
OF_RANK = re.compile(r"\[Rank (\d+)\]")
TIMERS = re.compile(r"\btime \(ms\) \| (.*)")
TIMER = re.compile(r"([\w-]+): (\d+(?:\.\d+)?)")
TIMER_RANGE = re.compile(r"^\s+([\w-]+) \.*: \(([\d.]+), (\d+(?:\.\d+)?)\)")
VARIABLES = ("NCCL_", "CUDA_", "PYTORCH_", "NVTE_")
UNSURE = ("block_size", "max_length", "num_devices", "context_length")
SURE = "|".join(name for name in OTHER_NAMES if "_" in name and name not in UNSURE)
SIZES = re.compile(
    rf"(?<![\w./-])[\"']?(?:({SURE})[\"']?(?: *[=:|\u2502] *| {{2,}})(\d[\d_]*)(?![\w.%/])"
    r"|(model|model_name)[\"']? ?[=:] ?[\"']?([\w./-]*\d[bB]\b[\w.-]*))"
)
SPOKEN = {re.sub("^n(?:um)?_", "number_of_", name).replace("_", " "): name for name in SURE.split("|")}
SPOKEN_SIZES = re.compile(
    rf"(?:^|[^\w\s./-]) *({'|'.join(SPOKEN)}) *[:=] *(\d+(?:,\d{{3}})*)(?![\w.%/])", re.IGNORECASE
)
"""The same in words, as in `World size: 16`, where no other word stands before them."""
FLAG_LINE = re.compile(r"\s*--([a-z][\w-]+)(?:=| +)([^\s\\-]\S*)$")
"""A flag and its value alone, as programs list what they were given."""
SHORT = re.compile(r"(?<![\w./-])(tp|pp|dp|cp|mbs|gbs|layers|hidden|heads|seq)=(\d+)(?![\w.])")
LEAST_SHORT = 3
CHOICE = re.compile(
    rf"(?<![\w./-])[\"']?({'|'.join((*DTYPES, *RECOMPUTES, 'zero_stage', 'compile'))})[\"']? ?[=:] ?[\"']?(\w[\w.-]*)"
)
"""What may stand on a line beside sizes."""
OF_SIZES = (
    *("_size", "_layer", "seq_len", "_heads", "d_model", "global_batch", "_gpus", "_length", "model", "tp=", "gbs="),
    *("hidden=", " --", " size", " length", "umber of "),
)
"""Sizes that a program prints under the names that many have for them."""
MIB = 2.0**20
MOST_OF_MEMORY = 4096


Reads = Callable[[UserRun, str, LogLine], bool]


def readers_of(text: str) -> tuple[Reads, ...]:
    """What may read a line, by the words in it; digits decide nothing."""
    return tuple(reads for words, reads in READERS if any(word in text for word in words))


def read_beside(run: UserRun, text: str, where: LogLine, readers: tuple[Reads, ...] | None = None) -> bool:
    """Take down what a line says that is of no step; False where it says nothing.

    Args:
        text: as it stands in the log; `where` has what the program itself printed.
    """
    answers = [reads(run, text, where) for reads in (readers_of(text) if readers is None else readers)]
    return any(answers)


def _memory(run: UserRun, text: str, where: LogLine) -> bool:
    if (match := OF_MEMORY.search(text)) is None or len(run.memory) >= MOST_OF_MEMORY:
        return False
    pairs = {name: value for name, value, _ in PAIR.findall(match[1])}
    allocated, reserved = (_bytes(pairs.get(name)) for name in ("max allocated", "max reserved"))
    rank = OF_RANK.search(text)
    run.memory.append(LoggedMemory(int(rank[1]) if rank else rank_of(text), allocated, reserved, where))
    return True


def _bytes(mebibytes: str | None) -> float | None:
    value = read_number(mebibytes, "memory_mib") if mebibytes else None
    return None if value is None else value * MIB


def read_timers(run: UserRun, text: str, where: LogLine) -> bool:
    """Take down the timers of a line, in seconds; of several ranks the slowest one's."""
    found = {name: value for match in [TIMERS.search(text)] if match for name, value in TIMER.findall(match[1])}
    if (match := TIMER_RANGE.match(where.text if where.text.startswith(" ") else f" {where.text}")) is not None:
        found[match[1]] = match[3]  # the slowest rank's
    run.timers |= {name: float(value) / 1e3 for name, value in found.items()}
    return bool(found)


def _sentences(run: UserRun, text: str, where: LogLine) -> bool:
    return read_sentences(run, text, where)


def _marks(run: UserRun, text: str, where: LogLine) -> bool:
    answers = [mark(run, kind, where) for kind in kinds_of(where.text)]
    return any(answers)


def _dictionary(run: UserRun, text: str, where: LogLine) -> bool:
    if ("': " not in text and '": ' not in text) or (content := printed_tree(text)) is None or len(content) < 2:
        return False
    read_tree(run, content, where.file, [text], SaidBy.RESOLVED, where.line or 1)
    return True


def _reprs(run: UserRun, text: str, where: LogLine) -> bool:
    return REPR.search(text) is not None and read_reprs(run, text, where)


def _pairs(run: UserRun, text: str, where: LogLine) -> bool:
    short = SHORT.findall(where.text)
    if (flag := FLAG_LINE.match(where.text)) is not None:
        says(run, flag[1].replace("-", "_"), flag[2], SaidBy.FLAG, where)
        return True
    found = [(SPOKEN[words.lower()], said.replace(",", ""), "", "") for words, said in SPOKEN_SIZES.findall(where.text)]
    found += SIZES.findall(where.text) + [(*pair, "", "") for pair in short if len(short) >= LEAST_SHORT]
    found += [(*pair, "", "") for pair in CHOICE.findall(where.text) if len(found) >= LEAST_SHORT]
    for name, value, of_model, model in found:
        says(run, name or of_model, value or model, SaidBy.PROSE, where)
    return bool(found)


READERS: tuple[tuple[tuple[str, ...], Reads], ...] = (
    (("memory (MB)",), _memory),
    (("time (ms)", ": ("), read_timers),
    (SENTENCE_WORDS, _sentences),
    (VARIABLES, read_variables),
    (MARK_WORDS, _marks),
    (("{",), _dictionary),
    (("Args(", "Arguments(", "Config(", "Provider", "Strategy(", "Trainer(", "Params(", "Namespace("), _reprs),
    (OF_SIZES, _pairs),
)
"""Words of which a line has one, and what reads it."""
BESIDE_WORDS = tuple(dict.fromkeys(word for words, _ in READERS for word in words))
