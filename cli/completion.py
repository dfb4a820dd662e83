"""The completion of overrides in bash: groups, their files, their keys, and the values that files give those keys.

Bash takes the equals sign for the end of a word, so that `cluster=fr` reaches a completer as three words, and only what
comes after the sign may be answered. Typer knows nothing of that, and imports every command to answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from conf.errors import TrisweepError
from conf.folders import OPTION, further_folders, groups, option_files, options
from conf.overrides import Override
from conf.yaml_text import file_text

WORDS, CURRENT = "COMP_WORDS", "COMP_CWORD"
ENTRY = re.compile(r"^(\w+):[ \t]*([^#\n]*?)[ \t]*(?:#.*)?$", re.MULTILINE)
"""A key at the left margin of a YAML file, with what stands beside it."""
SCALAR = re.compile(r"[\w.+-]+")


def answer_bash() -> bool:
    """Answer if the word under the cursor is an override; else leave to Typer a line whose words are whole again."""
    # bash takes `=` and `:` for ends of words, so that one override arrives as three.
    split = os.environ.get(WORDS, "").split("\n")
    current = int(os.environ.get(CURRENT, "0"))
    words, index = whole_words(split, current)
    os.environ[WORDS], os.environ[CURRENT] = "\n".join(words), str(index)
    word = words[index] if index < len(words) else ""
    if index < 2 or word.startswith("-"):
        return False
    joined = (word.removeprefix(f"{OPTION}=") for word in words if word.startswith(f"{OPTION}="))
    try:
        with further_folders([*(following for word, following in pairwise(words) if word == OPTION), *joined]):
            offered = list(offers(word))
    except TrisweepError:
        return False
    if not offered and "=" not in word:
        return False
    # What bash holds for words before the one under the cursor, it keeps by itself.
    was_split = current < len(split) and split[current] != word
    num_kept = len(word[: word.rfind("=") + 1]) if was_split else 0
    print("\n".join(text[num_kept:] for text in offered))
    return True


def whole_words(split: Sequence[str], current: int) -> tuple[list[str], int]:
    """The words of a line in which `cluster`, `=`, `fr` are one again, and the place of the one under the cursor."""
    words: list[str] = []
    index = current
    joins = False
    for place, piece in enumerate(split):
        if words and (piece == "=" or joins):
            words[-1] += piece
        else:
            words.append(piece)
        joins = piece == "="
        if place == current:
            index = len(words) - 1
    return words, (index if current < len(split) else len(words))


def offers(word: str) -> Iterator[str]:
    """Every override that may be meant; nothing where several groups begin like the word, or none."""
    override = Override.parse(word)
    key, value, equals = override.key, override.value or "", override.value is not None
    if not equals and "." not in key:
        meant = [group for group in groups() if key and group.startswith(key)]
        if len(meant) == 1 and not any(name.startswith(key) for name in options("sweep")):
            yield from _choices(meant[0], "")
    elif not equals:
        group, _, name = key.partition(".")
        names = [each for each in _values(group) if each.startswith(name)]
        if len(names) == 1:
            yield from _assignments(group, names[0], "")
        else:
            yield from (f"{group}.{each}=" for each in names)
    elif "." in key:
        group, _, name = key.partition(".")
        yield from _assignments(group, name, value)
    else:
        yield from _choices(key, value)


def _choices(group: str, begun: str) -> Iterator[str]:
    """The overrides that choose an option of the group which begins so."""
    if group in groups():
        yield from (f"{group}={option}" for option in options(group) if option.startswith(begun))


def _assignments(group: str, name: str, begun: str) -> Iterator[str]:
    """The overrides that give a key a value which begins so; the key alone where no file states a plain value."""
    values = sorted(_values(group).get(name, ()))
    fitting = [value for value in values if value.startswith(begun)]
    yield from (f"{group}.{name}={value}" for value in fitting)
    if not (values or begun) and name in _values(group):
        yield f"{group}.{name}="


def _values(group: str) -> dict[str, set[str]]:
    """The keys of a group's files with the plain values that these give them; of one that may be true, both."""
    values_by_key: dict[str, set[str]] = {}
    for path in option_files(group):
        for name, value in ENTRY.findall(file_text(path, errors="replace")):
            values_by_key.setdefault(name, set()).update([value] if SCALAR.fullmatch(value) else [])
    for values in values_by_key.values():
        if values & {"true", "false"}:
            values |= {"true", "false"}
    return {name: values for name, values in values_by_key.items() if name not in ("defaults", "name")}
