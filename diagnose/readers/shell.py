"""A launch script as its commands: words with the lines they stand on, variables that the script sets put in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

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
VARIABLE = re.compile(r"\$(?:\{#?([A-Za-z_]\w*)(?:\[[@*\d]+\])?(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*))")
ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
PRODUCT = re.compile(r"[\d\s*/()]{1,100}")
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


class Word(NamedTuple):
    """A word of a command, with its blanks where it was quoted."""

    text: str
    line: int
    is_quoted: bool = False


class Script(NamedTuple):
    """The commands of a script in order, with variables replaced where the script sets them; and those variables."""

    commands: list[list[Word]]
    variables: dict[str, list[Word]]


def script_of(text: str, known: Mapping[str, str] | None = None, first_line: int = 1) -> Script:
    """Take a script apart. Nothing is run; of branches and loops every line counts once, in its order.

    Args:
        known: variables that the scheduler sets, with their values.
    """
    variables = {name: [Word(value, first_line)] for name, value in (known or {}).items()}
    commands: list[list[Word]] = []
    for statement in _statements(text, first_line):
        words = statement
        while words and (words[0].text in BEFORE_A_COMMAND or ASSIGNMENT.match(words[0].text)):
            words = _assigned(variables, words) if ASSIGNMENT.match(words[0].text) else words[1:]
        expanded = [each for word in words for each in _expanded(word, variables)]
        if not expanded:
            continue
        # A comment between two lines of a command ends it for the shell; who wrote it meant the flags all the same.
        if expanded[0].text.startswith("--") and commands:
            commands[-1] += expanded
        else:
            commands.append(expanded)
    return Script(commands, variables)


def _statements(text: str, first_line: int) -> Iterator[list[Word]]:
    words: list[Word] = []
    line, is_array = first_line, False
    for token in TOKEN.finditer(text):
        if token.lastgroup == "word":
            words.append(Word(token["word"], line, token["word"][0] in "\"'"))
            is_array |= re.match(r"\w+\+?=\(", token["word"]) is not None
            is_array &= not token["word"].endswith(")")
        elif token.lastgroup == "end" and not is_array and words:
            yield words
            words = []
        line += token[0].count("\n")
    if words:
        yield words


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
    if alone and (held := variables.get(alone[1] or alone[3])) is not None:
        return held
    text = word.text if word.text.startswith("'") else _filled(word.text, variables)
    plain = Word(QUOTED.sub(_unquoted, text), word.line, word.is_quoted)
    return [plain] if '"' in word.text or "'" in word.text else list(_parts(plain))


def _unquoted(match: re.Match[str]) -> str:
    inside = match[1] if match[1] is not None else match[2]
    return match[3] if inside is None else inside.replace('\\"', '"') if match[1] is not None else inside


def _parts(word: Word) -> Iterator[Word]:
    """The parts of a text with blanks in it, such as a string of flags, each with its own line."""
    for offset, line in enumerate(word.text.split("\n")):
        shown = re.sub(r"(^|\s)#.*", "", line)
        yield from (Word(part, word.line + offset) for part in shown.split() if part != "\\")


def _filled(text: str, variables: Mapping[str, list[Word]]) -> str:
    """A text with the values of variables in it, sums worked out; what nobody sets stays as it is."""

    def value(match: re.Match[str]) -> str:
        held = variables.get(match[1] or match[3])
        return " ".join(each.text for each in held) if held else (match[2] or "").strip("\"'") or match[0]

    for _ in range(MOST_DEPTH):
        filled = VARIABLE.sub(value, text)
        if filled == text or len(filled) > MOST_TEXT:
            break
        text = filled
    return ARITHMETIC.sub(lambda match: _sum_of(match, variables), text)


def _sum_of(match: re.Match[str], variables: Mapping[str, list[Word]]) -> str:
    """What `$((A * B))` comes to; the text itself where the script does not set all of it."""
    named = re.sub(
        r"[A-Za-z_]\w*", lambda name: "".join(e.text for e in variables.get(name[0], ())) or name[0], match[1]
    )
    if not PRODUCT.fullmatch(named):
        return match[0]
    first, *others = re.split(r"([*/])", re.sub(r"[\s()]", "", named))
    value = int(first or 0)
    for sign, factor in zip(others[::2], others[1::2], strict=True):
        if not factor or (sign == "/" and not int(factor)):
            return match[0]
        value = value * int(factor) if sign == "*" else value // int(factor)
    return str(value)
