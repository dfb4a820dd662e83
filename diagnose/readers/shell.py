"""A launch script as its commands: words with the lines they stand on, variables that the script sets put in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from diagnose.readers.branches import TESTS, Branches, Word
from diagnose.readers.sums import sum_of

PIECE = (
    r"\"(?:\\.|[^\"\\])*\"|'[^']*'|\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^{}]*\}|\\[^\n]"
    r"|[^\s;&|\"'\\]|[\"']"
)
TOKEN = re.compile(
    rf"(?P<comment>(?<![^\s;])#[^\n]*)|(?P<joined>\\\r?\n)|(?P<end>\n|[;&|]+)|(?P<word>(?:{PIECE})+)|[^\S\n]+|\\",
    re.DOTALL,
)
QUOTED = re.compile(r"\"((?:\\.|[^\"\\])*)\"|'([^']*)'|\\([^\n])", re.DOTALL)
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
VARIABLE = re.compile(r"\$(?:\{#?([A-Za-z_]\w*|\d)(?:\[[@*\d]+\])?(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*))")
ARITHMETIC = re.compile(
    r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)|\$\((?:expr|echo) +\"?([^\"|()]*)\"?(?: *\| *bc(?: -l)?)?\)|`expr ([^`]*)`"
)
SUBSTITUTION = re.compile(r"\$\((?!\()(?:[^()]|\([^()]*\))*\)|`[^`]*`")
HOSTS = re.compile(r"(?:scontrol show hostnames?|SLURM_JOB_NODELIST).*\bwc\b")
FUNCTION = re.compile(r"^[ \t]*(?:function[ \t]+)?(\w+)[ \t]*\(\)[ \t]*\{(.*?)^\}", re.DOTALL | re.MULTILINE)
ARGUMENT, SHELL = re.compile(r"(=?)\$(?:\{([\d@])\}|([\d@]))"), re.compile(r"(?:\S*/)?(?:ba|z)?sh -[a-z]*c")
DEFAULT = re.compile(r"\$\{(\w+):?=([^${}]*)\}")
REPLY = "$(...)"
"""What stands for the answer of a command in a script: nothing of a script is run."""
BEFORE_A_COMMAND = (
    "export",
    "declare",
    "local",
    "readonly",
    "env",
    "exec",
    "then",
    "do",
    "else",
    "time",
    "+",
    "$",
    "-x",
)
MOST_DEPTH, MOST_TEXT = 8, 2**16


class Script(NamedTuple):
    """The commands of a script in order, with variables replaced where the script sets them; and those variables."""

    commands: list[list[Word]]
    variables: dict[str, list[Word]]


def script_of(
    text: str,
    known: Mapping[str, str] | None = None,
    first_line: int = 1,
    sourced: Callable[[str], str | None] = lambda name: None,
) -> Script:
    """Take a script apart. Nothing is run: of a loop every line counts once, of branches those that can be taken.

    Args:
        known: variables that the scheduler sets, with their values.
        sourced: the text of a file that the script reads with `source`; None where it is not there.
    """
    text = _with_arguments(text)
    variables = {name: [Word(part, first_line) for part in value.split()] for name, value in (known or {}).items()}
    for default in DEFAULT.finditer(text):  # `: "${TP:=2}"`; what sets it later or before stands where that is
        variables.setdefault(
            default[1], [Word(default[2].strip("\"'"), first_line + text[: default.start()].count("\n"))]
        )
    commands: list[list[Word]] = []
    branches = Branches(lambda word: _shown(word, variables))
    for statement, end in _statements(text, first_line):
        words = branches.taken(statement, end, variables)
        while words and (words[0].text in BEFORE_A_COMMAND or ASSIGNMENT.match(words[0].text)):
            words = _assigned(variables, words) if ASSIGNMENT.match(words[0].text) else words[1:]
        if len(words) > 1 and words[0].text in ("source", "."):
            _take_sourced(variables, words, sourced)
        expanded = [each for word in words for each in _expanded(word, variables)]
        if not expanded or words[0].text in TESTS:
            continue
        if (inner := _inner_commands(expanded, variables)) is not None:
            commands += inner
            continue
        # A comment between two lines of a command ends it for the shell; who wrote it meant the flags all the same.
        if expanded[0].text.startswith("--") and commands:
            commands[-1] += expanded
        else:
            commands.append(expanded)
    return Script(commands, variables)


def _inner_commands(words: list[Word], variables: Mapping[str, list[Word]]) -> list[list[Word]] | None:
    """The commands of `srun bash -c "..."` or `eval "..."`, each behind what starts it; None where no text is run."""
    texts = [word.text for word in words]
    if texts[0] == "eval" and len(words) == 2:
        words, texts = [words[1]] * 3, ["bash", "-c", texts[1]]
    shell = next(
        (place for place in range(len(words) - 2) if SHELL.fullmatch(" ".join(texts[place : place + 2]))), None
    )
    if shell is None or " " not in texts[shell + 2]:
        return None
    known = {name: " ".join(word.text for word in held) for name, held in variables.items()}
    return [words[:shell] + command for command in script_of(texts[shell + 2], known, words[shell + 2].line).commands]


def _with_arguments(text: str) -> str:
    """A script whose functions that are called once have the words of that call in them, for `$1` and `$@`."""
    for function in FUNCTION.finditer(text) if "()" in text else ():
        calls = re.findall(rf"^[ \t]*{function[1]}[ \t]+([^(\s&|;].*)$", text, re.MULTILINE)
        if len(calls) == 1:
            words = [word.text.strip("\"'") for word in next(_statements(calls[0], 1), ([], ""))[0]]
            named = {**{str(place): word for place, word in enumerate(words, 1)}, "@": " ".join(words)}
            body = ARGUMENT.sub(lambda found, named=named: _argument(found, named), function[2])
            text = text.replace(function[2], body)
    return text


def _argument(match: re.Match[str], named: Mapping[str, str]) -> str:
    value = named.get(match[2] or match[3], match[0][len(match[1]) :])
    return f'{match[1]}"{value}"' if match[1] else value


def _take_sourced(variables: dict[str, list[Word]], words: list[Word], sourced: Callable[[str], str | None]) -> None:
    """Take over the variables that another script sets; they count as said where it is named."""
    text = sourced(_shown(words[1], variables))
    known = {name: " ".join(word.text for word in held) for name, held in variables.items()}
    for name, held in (script_of(text, known).variables if text else {}).items():
        if known.get(name) != " ".join(word.text for word in held):
            variables[name] = [word._replace(line=words[0].line) for word in held]


def _shown(word: Word, variables: Mapping[str, list[Word]]) -> str:
    return QUOTED.sub(_unquoted, word.text if word.text.startswith("'") else filled_text(word.text, variables))


def _statements(text: str, first_line: int) -> Iterator[tuple[list[Word], str]]:
    """The statements of a script, each with what ends it: a line, `;`, `&&`, `||` or a pipe."""
    words: list[Word] = []
    line, is_array = first_line, False
    for token in TOKEN.finditer(text):
        if token.lastgroup == "word":
            words.append(Word(token["word"], line, token["word"][0] in "\"'"))
            is_array |= re.match(r"\w+\+?=\(", token["word"]) is not None
            is_array &= not token["word"].endswith(")")
        elif token.lastgroup == "end" and not is_array and (words or token[0] == ";;"):
            yield words, token[0]
            words = []
        line += token[0].count("\n")
    if words:
        yield words, ""


def _assigned(variables: dict[str, list[Word]], words: list[Word]) -> list[Word]:
    """Set a variable, an array up to its closing bracket; return the words behind it."""
    first, *rest = words
    match = ASSIGNMENT.match(first.text)
    assert match is not None
    value = [first._replace(text=first.text[match.end() :])]
    if value[0].text.startswith("("):
        closing = next((place for place, word in enumerate(words) if word.text.endswith(")")), len(words) - 1)
        value = [value[0]._replace(text=value[0].text[1:]), *words[1 : closing + 1]]
        value[-1] = value[-1]._replace(text=value[-1].text.removesuffix(")"))
        rest = words[closing + 1 :]
    expanded = [part for word in value if word.text for each in _expanded(word, variables) for part in _parts(each)]
    variables[match[1]] = [*variables.get(match[1], ()), *expanded] if match[2] else expanded
    return rest


def _expanded(word: Word, variables: Mapping[str, list[Word]]) -> list[Word]:
    """The words that one comes to: a variable that stands alone holds words of other lines."""
    alone = VARIABLE.fullmatch(word.text.strip('"'))
    if alone and "#" not in alone[0] and (held := variables.get(alone[1] or alone[3])) is not None:
        return held
    plain = Word(_shown(word, variables), word.line, word.is_quoted)
    return [plain] if '"' in word.text or "'" in word.text else list(_parts(plain))


def _unquoted(match: re.Match[str]) -> str:
    inside = match[1] if match[1] is not None else match[2]
    return match[3] if inside is None else inside.replace('\\"', '"') if match[1] is not None else inside


def _parts(word: Word) -> Iterator[Word]:
    """The parts of a text with blanks in it, such as a string of flags, each with its own line."""
    for offset, line in enumerate(word.text.split("\n")):
        shown = re.sub(r"(^|\s)#.*", "", line)
        yield from (Word(part, word.line + offset) for part in shown.split() if part != "\\")


def filled_text(text: str, variables: Mapping[str, list[Word]]) -> str:
    """A text with the values of variables in it, sums worked out; what nobody sets stays as it is."""

    def value(match: re.Match[str]) -> str:
        held = variables.get(match[1] or match[3])
        if match[0].startswith("${#"):
            return str(len(held)) if held else match[0]
        return " ".join(each.text for each in held) if held else (match[2] or "").strip("\"'") or match[0]

    for _ in range(MOST_DEPTH):
        filled = VARIABLE.sub(value, text)
        if filled == text or len(filled) > MOST_TEXT:
            break
        text = filled
    named = {name: "".join(each.text for each in held) for name, held in variables.items()} if "((" in text else {}
    text = ARITHMETIC.sub(lambda match: sum_of(match[1] or match[2] or match[3] or "", named) or match[0], text)
    hosts = variables.get("SLURM_NNODES", ())
    return SUBSTITUTION.sub(lambda match: hosts[0].text if hosts and HOSTS.search(match[0]) else REPLY, text)
