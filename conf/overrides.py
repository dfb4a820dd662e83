"""A person's changes of the configuration: Hydra's overrides, taken apart once, where they enter the program.

`cluster=frontier` chooses a file of a group, `batch.micro_batch_size=2` sets a value. Nobody outside `conf` splits the
text of an override: `Overrides` answers what was chosen and what was set.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

SIGNS = "+~"
"""Hydra adds with a plus, adds or overrides with two, and deletes with a tilde."""


PLAIN = re.compile(r"[\w/+.$%*@?|:-]+( +[\w/+.$%*@?|:-]+)*", re.ASCII)
"""Texts that Hydra takes without quotes. Source: the grammar of its overrides, `primitive` and UNQUOTED_CHAR."""

OTHER_TYPES = re.compile(
    r"null|true|false|[+-]?(inf|nan|(\d[\d_]*\.?|\.\d)[\d_]*(e[+-]?[\d_]+)?)", re.ASCII | re.IGNORECASE
)
"""Texts that Hydra takes for something other than text."""


WITHOUT_FILE = "_script"
"""The sweep that one without a file builds on: all of it is overrides."""


@dataclass(frozen=True, slots=True)
class Override:
    """One change of the configuration.

    Attributes:
        text: the override as it was written, which is what records keep.
        key: its key without Hydra's sign, such as `cluster`, `batch.micro_batch_size` or `device@cluster.device`.
        value: its value without quotes; None if there is none, as in a deletion.
        word: the word of a command that it is a part of, such as `model_from=config.json`; None where that is its text.
    """

    text: str
    key: str
    value: str | None
    word: str | None = None

    @classmethod
    def parse(cls, text: str) -> Override:
        """Any text is taken; what Hydra cannot read is refused when it is composed."""
        key, equals, value = text.partition("=")
        return cls(text, key.lstrip(SIGNS), _unquoted_text(value) if equals else None)

    @property
    def group(self) -> str:
        """The first part of the key, such as `batch`."""
        return re.split("[.@]", self.key, maxsplit=1)[0]

    @property
    def pins(self) -> bool:
        """True if it states one value instead of choosing a file of values."""
        return "." in self.key and "@" not in self.key


@dataclass(frozen=True, slots=True)
class Overrides:
    """All changes, in the order in which they were given; of two for the same key the later one holds."""

    entries: tuple[Override, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Overrides:
        """The overrides that words state, from a command line, a record, or a file of a sweep."""
        return cls(tuple(Override.parse(text) for text in texts))

    @classmethod
    def choosing(cls, group: str, option: str) -> Overrides:
        """The choice of one file, such as `sweep=175b`."""
        return cls.parse([f"{group}={option}"])

    def __iter__(self) -> Iterator[Override]:
        return iter(self.entries)

    def __add__(self, later: Overrides) -> Overrides:
        return Overrides(self.entries + later.entries)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(override.text for override in self.entries)

    @property
    def words(self) -> tuple[str, ...]:
        """The texts as a person gave them; a word that became several overrides comes before those that correct it."""
        several = dict.fromkeys(override.word for override in self.entries if override.word)
        return (*several, *(override.text for override in self.entries if not override.word))

    @property
    def is_without_file(self) -> bool:
        """True of those of a sweep that a command line alone describes."""
        return self.stated_value("sweep") == WITHOUT_FILE

    def stated_value(self, group: str) -> str | None:
        """The last value for a group or a dotted key; None if that was left to the configuration."""
        return next((override.value for override in reversed(self.entries) if override.key == group), None)

    def pinned_keys(self) -> list[str]:
        """Dotted keys whose values were stated one by one, without repetition. A chosen file pins nothing."""
        return list(dict.fromkeys(override.key for override in self.entries if override.pins))

    def of(self, groups: Collection[str]) -> Overrides:
        """The overrides that choose a file of one of the groups or change a value in one."""
        return Overrides(tuple(override for override in self.entries if override.group in groups))

    def without(self, groups: Collection[str]) -> Overrides:
        """The overrides that have nothing to do with any of the groups."""
        return Overrides(tuple(override for override in self.entries if override.group not in groups))

    def without_choice(self, group: str) -> Overrides:
        """The overrides without the choice of a file of the group; values in it that were stated stay."""
        return Overrides(tuple(override for override in self.entries if override.key != group))


def value_text(value: object) -> str:
    """A value in the grammar of Hydra's overrides, which differs from Python's."""
    match value:
        case None:
            return "null"
        # A bool is an int too, and Python would write it with a capital letter, which Hydra takes for a text.
        case bool():
            return str(value).lower()
        case tuple() | list():
            return "[" + ",".join(map(value_text, value)) + "]"
        case dict():
            return "{" + ",".join(f"{key}:{value_text(entry)}" for key, entry in value.items()) + "}"
    return str(value)


def for_a_shell(key: str, value: object) -> str:
    """The override that sets a key, as a person may copy it into a command."""
    return shell_word(override_text(key, value))


def override_text(key: str, value: object) -> str:
    """The override that sets a key; a text stays one where Hydra would read it as a number, a truth or a null."""
    is_quoted = isinstance(value, str) and (not PLAIN.fullmatch(value) or OTHER_TYPES.fullmatch(value))
    return f"{key}={quoted_text(str(value)) if is_quoted else value_text(value)}"


def command_line(words: Iterable[str]) -> str:
    """A command as a person may copy it into a shell."""
    return " ".join(map(shell_word, words))


def shell_word(text: str) -> str:
    """An override, so quoted that a shell hands it on as it is."""
    # Around single quotes a shell takes double ones, which people can read, unless it would expand something in them.
    return f'"{text}"' if "'" in text and not set(text) & set('"$`\\!') else shlex.quote(text)


def quoted_text(text: str) -> str:
    """A text in quotes of Hydra's grammar, in which any character may stand."""
    # A backslash counts for itself there, unless it stands before a quote or at the end.
    inner = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{inner}'"


def _unquoted_text(value: str) -> str:
    if not (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    # Hydra halves only those backslashes that stand before the quote or at the end; inside a word each is itself.
    quote, inner = value[0], value[1:-1]
    escaped = re.compile(rf"(\\+)({quote}|$)")
    return escaped.sub(lambda match: "\\" * (len(match[1]) // 2) + match[2], inner)
