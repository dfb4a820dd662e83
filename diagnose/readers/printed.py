"""What a trainer prints of its configuration: dumps of arguments, sentences about them, and classes as Python does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from conf.folders import package_content
from diagnose.readers.said import says
from diagnose.readers.text import at
from diagnose.runs import LogLine, SaidBy, UserRun

DUMPED = re.compile(
    r"^\s{0,6}([A-Za-z_][\w-]*) ?\.{2,}:? ?(.+)$"
    r"|^\s{0,6}([A-Za-z_]\w*(?:(?<=\w{29})|(?=  ?[^.\s].*\.{4,}(?:updated|default)))) {1,2}\.? ?(\S.*)$"
)
"""A name too long for its column has no dots behind it."""
OF_NEOX = re.compile(r"\.{2,}(?:updated|default)\s*$")
DUMP_BEGINS = re.compile(r"-{5,} ?[\w -]*arguments ?-{5,}", re.IGNORECASE)
DUMP_ENDS = re.compile(r"-{3,} ?end of ", re.IGNORECASE)
CLASSES = r"[A-Z]\w*(?:Args|Arguments|Config|Provider\w*|Strategy|Trainer|Params|Namespace)|Namespace"
REPR, REPR_OPENS = re.compile(rf"\b({CLASSES})\("), re.compile(rf"\b(?:{CLASSES})\(\s*$")
LISTED_FIELD = re.compile(r"^\s*([a-z_]\w*)=(.*?),?\s*$")
REPR_FIELD = re.compile(r"\b([a-z_]\w*)=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|\{[^{}]*\}|<[^>]*>|[\w.+-]+(?:\([^()]*\))?)")

SENTENCES: dict[str, list[str]] = package_content("sentences.yaml", __package__)
PATTERNS = {words: tuple(map(re.compile, patterns)) for words, patterns in SENTENCES.items()}
PAIRS: dict[str, tuple[re.Pattern[str], str]] = {
    "using world size": (re.compile(r"\b(?:and )?([a-z]+(?:-[a-z]+)*)[ -]size: (\d+)"), "{}_size"),
    "mesh with par": (re.compile(r"\b(\w+)=(\d+)"), "mesh.{}"),
    "parallel size: ": (re.compile(r"\b((?:data|pipeline|tensor) parallel) size: (\d+)"), "{}_size"),
    "Mcore default": (re.compile(r"\b([a-z_]\w*): (\S+) \(Mcore default"), "{}"),
    "Config param ": (re.compile(r"Config param (\w+): (\S+)"), "{}"),
    "Overriding: ": (re.compile(r"Overriding: (\w+) = (\S+)"), "{}"),
    "etting ": (re.compile(r"\b[Ss]etting (?:args\.|--)([\w-]+) to (\w[\w.]*)"), "{}"),
    "overriding": (re.compile(r"overriding (?:default )?arguments? for (\w+):\S+\s+with \w+:(\S+)"), "{}"),
    "number of param": (
        re.compile(r"number of parameters on (?:\(tensor, pipeline\) )?model parallel rank \(?([\d, ]+)\)?: +(\d+)"),
        "parameters_on_rank_{}",
    ),
}
"""Words, and a pattern that finds names of settings and their values, and how the setting is called."""
MESH = re.compile(r"device mesh with \[([^\]]*)\], \[([\d, ]+)\]")
SENTENCE_WORDS = (*SENTENCES, *PAIRS, "device mesh")
VARIABLE = re.compile(
    r"\b((?:NCCL|CUDA|NVTE|TORCH_NCCL|PYTORCH)_[A-Z_0-9]+)(?:=| set by environment to | to )(\S+?)\.?(?=[\s,;]|$)"
)


def read_dumped(run: UserRun, text: str, where: LogLine) -> bool:
    """Take down a line `name ........ value` of a dump of arguments; False where it is none."""
    if "..: (" in text or (match := DUMPED.match(text)) is None:  # the former are timers of two ranks
        return False
    name, value = match[1] or match[3], OF_NEOX.sub("", match[2] or match[4]).strip()
    if value and not value.startswith("[OKAY") and set(value) != {"."}:
        says(run, name, value, SaidBy.RESOLVED, where)
        if name == "zero_config":
            read_sentences(run, value, where)
    return True


def read_sentences(run: UserRun, text: str, where: LogLine) -> bool:
    """Take down what sentences of a log say of the configuration; False where they say nothing."""
    found = dict(_said_in(text))
    for name, value in found.items():
        says(run, name, value, SaidBy.RESOLVED, where)
    return bool(found)


def _said_in(text: str) -> Iterator[tuple[str, str]]:
    for words in (words for words in PATTERNS if words in text):
        for match in filter(None, (pattern.search(text) for pattern in PATTERNS[words])):
            for name, value in match.groupdict().items():
                said = "True" if name.startswith(("compile__", "float8__", "gradient_checkpointing")) else _plain(value)
                yield name.replace("__", "."), said
    for words, (pattern, name) in PAIRS.items():
        if words in text:
            for key, value in pattern.findall(text):
                yield name.format(key.replace("-", "_").replace(", ", "_").replace(" ", "_")), value
    if "device mesh" in text and (mesh := MESH.search(text)):
        for axis, size in zip(mesh[1].split(","), mesh[2].split(","), strict=False):
            yield f"mesh.{axis.strip(chr(39) + ' ')}", size.strip()


def _plain(value: str) -> str:
    return value.replace(",", "") if value[:1].isdigit() else value


def read_variables(run: UserRun, text: str, where: LogLine) -> bool:
    """Take down variables that a log prints, as NCCL and `set -x` do; False where it prints none."""
    found = VARIABLE.findall(text)
    for name, value in found:
        says(run, name, value.strip("'\""), SaidBy.RESOLVED, where)
    return bool(found)


def read_reprs(run: UserRun, text: str, where: LogLine) -> bool:
    """Take down the fields of dataclasses as Python prints them: `ModelArgs(dim=4096, n_layers=32, ...)`."""
    for begin in REPR.finditer(text):
        inside = text[begin.end() :]
        for match in REPR_FIELD.finditer(inside[: _end_of(inside)]):
            value = match[2].strip("'\"")
            says(run, match[1], value, SaidBy.RESOLVED, at(where.file, where.line, f"{begin[1]}({match[0]}"))
    return True


def read_listed(run: UserRun, lines: list[str], where: LogLine) -> None:
    """Take down the fields of a class that is printed with one field on each line."""
    for offset, line in enumerate(lines):
        if (match := LISTED_FIELD.match(line)) is not None and match[2] and not match[2].endswith(("(", "{", "[")):
            says(
                run, match[1], match[2].strip("'\""), SaidBy.RESOLVED, at(where.file, (where.line or 1) + offset, line)
            )


def _end_of(text: str) -> int:
    """Where the bracket closes that stands before a text."""
    depth = 1
    for place in re.finditer(r"[()]", text):
        depth += 1 if place[0] == "(" else -1
        if depth == 0:
            return place.start()
    return len(text)
