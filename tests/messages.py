"""What users are told when something is refused: a test pins the class of the error and its key, and `messages.golden`
holds the sentences of all tests, which `make messages` writes anew.

So a sentence is bettered in one place, and a reviewer reads it in the diff. What depends on the machine or the moment
(folders, host names, processes, dates, predicted figures) stands there as a word in capitals.
"""

from __future__ import annotations

import difflib
import re
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeVar

import pytest

from conf.errors import EXIT_USAGE

TESTS = Path(__file__).parent
GOLDEN = TESTS / "messages.golden"
MOST_CHARACTERS = 180
"""Of the name of a test; one that is longer is told from others by digits of its hash."""

Messages = dict[str, list[str]]
"""Of each test, named by its path below tests/ and its name with the case in brackets, what it was told, in turn."""

_E = TypeVar("_E", bound=BaseException)


@contextmanager
def refused(error: type[_E], key: object = "", *, recorded: bool = True) -> Iterator[pytest.ExceptionInfo[_E]]:
    """The error of this class, whose key is this one; its message is that of `messages.golden`.

    Args:
        key: of a `ConfigError` its whole key; of another error what its message names, such as a file or a flag.
        recorded: False where the message depends on the version of a library or on the machine.
    """
    with pytest.raises(error) as caught:
        yield caught
    _check(str(caught.value), getattr(caught.value, "key", None), str(key), recorded)


def said(
    result: subprocess.CompletedProcess[str] | str, key: object = "", *, code: int = EXIT_USAGE, recorded: bool = True
) -> None:
    """The command ended with this exit code, names this key, file or flag in what it says, and has no traceback.

    Args:
        result: the command that has ended, or what it said where its exit code was looked at.
    """
    told = " ".join((result if isinstance(result, str) else result.stderr).split())  # lines end where a terminal's do
    assert isinstance(result, str) or result.returncode == code, told
    assert "Traceback" not in told
    _check(told, None, str(key), recorded)


def _check(message: str, key: str | None, named: str, recorded: bool) -> None:
    if key is None:
        assert named in message
    else:
        assert key == named, message
    if recorded:
        BOOK.hear(message)


class Book:
    """The plugin that compares what each test is told with what was recorded of it, or records it.

    Attributes:
        golden: what was recorded.
        heard: of each test of this process that passed.
        gone: tests that were recorded and are there no longer.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.golden = path, recorded_in(path)
        self.rewrites, self.folder = False, gettempdir()
        self.test, self.told = "", list[str]()
        self.heard, self.gone = Messages(), set[str]()

    def hear(self, message: str) -> None:
        """Take up the next message of the test that runs; one that is not as recorded fails it."""
        self.told.append(normalised(message, self.folder))
        number, recorded = len(self.told), self.golden.get(self.test, [])
        if not self.rewrites and self.told[-1:] != recorded[number - 1 : number]:
            before = "".join(recorded[number - 1 : number]).splitlines()
            diff = difflib.unified_diff(before, self.told[-1].splitlines(), "recorded", "now", lineterm="", n=9)
            pytest.fail("\n".join((f"Message {number} is not as recorded.", *diff, _remedy(self.test))), pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self.test, self.told = _name_of(item), []
        result = yield
        if self.rewrites:
            self.heard[self.test] = self.told
        elif len(self.told) < (number := len(self.golden.get(self.test, []))):
            pytest.fail(
                f"{number} messages are recorded, and {len(self.told)} came. {_remedy(self.test)}", pytrace=False
            )
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Before any test is left out: of files that were collected whole, those that are there no longer."""
        self.folder = config.getoption("basetemp") or self.folder
        if self.rewrites and not any("::" in given for given in config.args):
            there = {_name_of(item) for item in items}
            files = {test.split("::")[0] for test in there}
            self.gone = {test for test in self.golden if test.split("::")[0] in files and test not in there}

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, or as a worker of pytest-xdist pass on what it takes."""
        if not self.rewrites:
            return
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["messages"] = {"heard": self.heard, "gone": sorted(self.gone)}
        else:
            now = recorded_in(self.path)  # which another run may have written meanwhile
            self.path.write_text(written(merged(now, self.heard, self.gone, self.path.parent)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        part = getattr(node, "workeroutput", {}).get("messages", {})
        self.heard |= part.get("heard", {})
        self.gone |= {*part.get("gone", ())}


def recorded_in(path: Path) -> Messages:
    return read(path.read_text()) if path.exists() else {}


def _name_of(item: pytest.Item) -> str:
    """Without the group that pytest-xdist has appended."""
    group = item.get_closest_marker("xdist_group")
    name = (item.nodeid.removesuffix(f"@{group.args[0]}") if group else item.nodeid).removeprefix(f"{TESTS.name}/")
    return name if len(name) <= MOST_CHARACTERS else f"{name[:MOST_CHARACTERS]}… {md5(name.encode()).hexdigest()[:8]}"


def _remedy(test: str) -> str:
    return f"If it is right now: make messages TESTS={TESTS.name}/{test.split('::')[0]}, and read the diff."


def merged(golden: Messages, heard: Messages, gone: set[str], tests: Path = TESTS) -> Messages:
    """What was recorded of tests that did not run stays; that of files which record nothing any longer goes."""
    kept = {test: told for test, told in golden.items() if test not in gone and _records(tests / test.split("::")[0])}
    return {test: told for test, told in sorted((kept | heard).items()) if told}


def _records(file: Path) -> bool:
    return file.exists() and "tests.messages" in file.read_text()


def written(messages: Messages) -> str:
    """As `messages.golden` has them: each file, in it each test, and below it a line that begins with `-` a message."""
    lines, file_before = list[str](), ""
    for test, told in sorted(messages.items()):
        file, name = test.split("::", 1)
        if file != file_before:
            lines += ["", file] if lines else [file]
            file_before = file
        lines.append(f"  {name}")
        lines += (f"    {'- ' if first else '  '}{line}" for each in told for first, line in _lines(each))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _lines(message: str) -> Iterator[tuple[bool, str]]:
    return ((number == 0, line or "|") for number, line in enumerate(message.split("\n")))


def read(text: str) -> Messages:
    """What `written` has made."""
    messages, file, told = Messages(), "", list[str]()
    for line in text.splitlines():
        if line.startswith("    - "):
            told.append(line[6:])
        elif line.startswith("      "):
            told[-1] += "\n" + ("" if line[6:] == "|" else line[6:])
        elif line.startswith("  "):
            told = messages.setdefault(f"{file}::{line[2:]}", [])
        elif line:
            file = line
    return messages


HOST = socket.gethostname()
OF_CHECKOUT = ((rf"{re.escape(sys.executable)}\b", "PYTHON"), (rf"{re.escape(str(TESTS.parent))}\b", "CHECKOUT"))
VOLATILE = (
    (rf"{re.escape(str(Path.home()))}(?=[/\s'\"`.,:]|$)", "HOME"),
    (rf"(?<=\bon ){re.escape(HOST)}\b", "HOST"),
    (r"\b(process|[Pp]id|PID) \d+", r"\1 PID"),
    (r"\b\d+(?=_\d+_log\.)", "PID"),
    (r"(localhost|127\.0\.0\.1|\[::1\]):\d+", r"\1:PORT"),
    (r"\b([Pp]ort[ =])\d+", r"\1PORT"),
    (r"(?<=-)(?=[a-f]*\d)[0-9a-f]{6,8}\b|\b[0-9a-f]{32}\b", "DIGEST"),
    (r"\b20\d\d[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?Z?)?", "DATE"),
    (r"\$[\d,]*\d(?:\.\d+)?", "$FIGURE"),
    (r"\b[\d,]*\d\.\d+ (?=[GMT]iB|hours|days|seconds|s\b|TFLOP)", "FIGURE "),
    (r"\b\d+ (?=GiB were free)", "FIGURE "),
)
"""What another run, machine or cost model says otherwise, and how it is recorded."""


def normalised(message: str, folder: str) -> str:
    """The message without what is the machine's or the moment's.

    Args:
        folder: in which pytest makes the folders of tests.
    """
    places = {re.escape(str(each)) for each in (folder, gettempdir())}
    below = r"(?:/pytest-of-[^/\s]+)?(?:/pytest-\d+)?(?:/popen-gw\d+)?/[\w-]+"
    temporary = (f"(?:{'|'.join(sorted(places, key=len, reverse=True))}){below}", "TMP")
    for pattern, word in (*OF_CHECKOUT, temporary, *VOLATILE):  # a checkout may lie in a temporary folder
        message = re.sub(pattern, word, message)
    return "\n".join(line.rstrip() for line in message.split("\n"))


BOOK = Book(GOLDEN)
