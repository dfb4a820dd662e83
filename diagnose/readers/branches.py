"""Which branches of a script can be taken: `if`, `case`, and what stands behind `&&` and `||`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

TESTS = ("[", "[[", "test")
SIGNS: Mapping[str, Callable[[int, int], bool]] = {
    **{"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt},
    **{"-ge": operator.ge, "-lt": operator.lt, "-le": operator.le},
}
UNSET = re.compile(r"\$\{?\w+(?::?[-+]\w*)?\}?")


class Word(NamedTuple):
    """A word of a command, with its blanks where it was quoted."""

    text: str
    line: int
    is_quoted: bool = False


Variables = dict[str, list[Word]]


def outcome(words: list[str]) -> bool | None:
    """What `[ words ]` comes to; None where a variable is in it that the script does not set."""
    if words[:1] == ["!"]:
        answer = outcome(words[1:])
        return None if answer is None else not answer
    if len(words) == 2 and words[0] in ("-z", "-n"):
        is_unset = not words[1] or UNSET.fullmatch(words[1]) is not None
        return is_unset == (words[0] == "-z") if is_unset or "$" not in words[1] else None
    if len(words) != 3 or "$" in words[0] + words[2]:
        return None
    one, sign, other = words
    if sign in ("=", "==", "!="):
        return fnmatchcase(one, other) == (sign != "!=")
    are_numbers = one.lstrip("-").isdigit() and other.lstrip("-").isdigit()
    return SIGNS[sign](int(one), int(other)) if sign in SIGNS and are_numbers else None


@dataclass
class Branch:
    """An `if` or a `case` that is open.

    Attributes:
        subject: what a case compares; None of an if.
        takes: whether its present branch is taken; None where nobody knows.
        is_decided: true once a branch was taken for certain, so that no later one is.
        before: the variables before its first branch; `others` as each branch leaves them that may be taken.
    """

    subject: str | None
    before: Variables
    takes: bool | None = False
    is_decided: bool = False
    others: list[Variables] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    is_at_pattern: bool = True

    def turn(self, takes: bool | None, variables: Variables) -> None:
        """Go on to the next branch, which begins with what was set before the first one."""
        if self.takes is None:
            self.others.append(dict(variables))
            variables.clear()
            variables.update(self.before)
        self.is_decided |= self.takes is True
        self.takes = False if self.is_decided else takes

    def close(self, variables: Variables) -> None:
        """Take over what the branches set; of several that may be taken only what they agree on."""
        was_taken = self.is_decided or self.takes is True
        self.turn(False, variables)
        ends = [*self.others, *([dict(variables)] if was_taken else [])]
        for name in {name for end in ends for name in end}:
            values = [end[name] for end in ends if end.get(name) != self.before.get(name)]
            if values and all([w.text for w in value] == [w.text for w in values[0]] for value in values):
                variables[name] = values[0]
            elif values and name not in self.before:
                variables.pop(name, None)
            elif values:
                variables[name] = self.before[name]


class Branches:
    """Follows a script through its branches."""

    def __init__(self, shown: Callable[[Word], str]) -> None:
        """Begin outside of all branches; `shown` fills the variables of a word in."""
        self._shown = shown
        self._open: list[Branch] = []
        self._skips = False

    def taken(self, words: list[Word], end: str, variables: Variables) -> list[Word]:
        """The words of a statement that count, none of a branch that is not taken."""
        word = words[0].text if words else ""
        if word in ("if", "case"):
            is_case = word == "case"
            subject = self._shown(words[1]) if is_case and len(words) > 1 else None
            self._open.append(Branch(subject, dict(variables), False if is_case else self._condition(words[1:], end)))
            return []
        if self._open:
            words = self._turned(words, end, variables)
        is_skipped, self._skips = self._skips, False
        if is_skipped or not words or any(branch.takes is False for branch in self._open):
            return []
        if words[0].text in TESTS and end in ("&&", "||"):
            answer = self._condition(words, "")
            self._skips = answer is not None and answer == (end == "||")
        return words

    def _condition(self, words: list[Word], end: str) -> bool | None:
        if not words or words[0].text not in TESTS or end in ("&&", "||"):
            return None
        return outcome([self._shown(each) for each in words[1 : -1 if words[-1].text in ("]", "]]") else None]])

    def _turned(self, words: list[Word], end: str, variables: Variables) -> list[Word]:
        """The rest of a statement behind the word that goes on to another branch."""
        branch, word = self._open[-1], words[0].text if words else ""
        if word in ("fi", "esac"):
            self._open.pop().close(variables)
            return []
        if word == "elif" or (word == "else" and branch.subject is None):
            is_left = branch.takes is False and not branch.others
            branch.turn(self._condition(words[1:], end) if word == "elif" else is_left or None, variables)
            return words[1:] if word == "else" else []
        if branch.subject is None or not words or not branch.is_at_pattern:
            branch.is_at_pattern |= end == ";;"
            return words
        place = next((place for place, each in enumerate(words[:3]) if each.text.endswith(")")), None)
        branch.patterns += [each.text.strip("()\"'") for each in words[: 1 if place is None else place + 1]]
        if place is None:
            return []
        is_known, patterns, branch.patterns = "$" not in branch.subject, branch.patterns, []
        branch.turn(any(fnmatchcase(branch.subject, each) for each in patterns) if is_known else None, variables)
        branch.is_at_pattern = end == ";;"
        return words[place + 1 :]
