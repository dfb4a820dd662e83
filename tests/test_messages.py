"""What users are told stands in one file, which one command writes anew."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import GOLDEN, HOST, TESTS, Messages, merged, normalised, read, refused, said, written

HELPER = """
from pathlib import Path
from tests.messages import Book
import tests.messages as messages

messages.BOOK = BOOK = Book(Path(__file__).with_name("told.golden"))

def pytest_addoption(parser):
    parser.addoption("--rewrite-messages", action="store_true")

def pytest_configure(config):
    BOOK.rewrites = config.getoption("rewrite_messages")
    config.pluginmanager.register(BOOK, "messages")
"""
MODULE = """
import pytest
from conf.errors import ConfigError
from tests.messages import refused

@pytest.mark.parametrize("size", SIZES)
def test_a_size(size):
    with refused(ConfigError, "size"):
        raise ConfigError("size", size, "PROBLEM", "Give another one.")
"""
TOLD: Messages = {
    "conf/test_a.py::test_b[x: - y]": ["a = 1: is wrong.\n\n  Use 2."],
    "test_messages.py::test_c": ["d", "e"],
}


def test_what_is_written_is_read_again_as_it_was() -> None:
    assert read(written(TOLD)) == TOLD
    assert written(read(GOLDEN.read_text())) == GOLDEN.read_text()


def test_every_message_is_of_a_test_that_is_there() -> None:
    """`make messages` leaves out what is of no test, and cannot where nobody gives it."""
    texts = {file: (TESTS / file).read_text() for file in {test.split("::")[0] for test in read(GOLDEN.read_text())}}
    gone = [
        test
        for test in read(GOLDEN.read_text())
        if f"def {re.split(r'[:[]', test.split('::', 1)[1])[0]}(" not in texts[test.split("::")[0]]
    ]
    assert gone == []


def test_what_did_not_run_stays_and_what_is_gone_goes() -> None:
    golden = {"test_messages.py::test_a": ["1"], "test_messages.py::test_b": ["2"], "conf/nowhere.py::test_c": ["3"]}
    assert merged(golden, {"test_messages.py::test_d": ["4"]}, {"test_messages.py::test_a"}) == {
        "test_messages.py::test_b": ["2"],
        "test_messages.py::test_d": ["4"],
    }


@pytest.mark.parametrize(
    ("message", "recorded"),
    [
        ("FOLDER/runs/a.json cannot be read. Correct FOLDER.", "TMP/runs/a.json cannot be read. Correct TMP."),
        (f"{TESTS}/a, {Path.home()}/b on {HOST}", "CHECKOUT/tests/a, HOME/b on HOST"),
        ("used by process 4711 since 2026-11-29 10:00:00", "used by process PID since DATE"),
        ("0.1 GiB, and 66 GiB were free", "FIGURE GiB, and FIGURE GiB were free"),
        ("3.5 GiB short, for $1,200 at 127.0.0.1:8080", "FIGURE GiB short, for $FIGURE at 127.0.0.1:PORT"),
        ("batch.micro_batch_size = 2", "batch.micro_batch_size = 2"),
    ],
)
def test_what_the_machine_or_the_moment_adds_is_not_recorded(message: str, recorded: str, tmp_path: Path) -> None:
    assert normalised(message.replace("FOLDER", str(tmp_path)), str(tmp_path.parent)) == recorded


def test_a_checkout_in_a_temporary_folder_is_a_checkout() -> None:
    assert normalised(f"{sys.executable} in {TESTS}", str(TESTS.parents[1])) == "PYTHON in CHECKOUT/tests"


def test_another_class_another_key_and_a_traceback_fail() -> None:
    from conf.errors import ConfigError, UsageError

    wrong = ConfigError("a.b", 1, "is wrong", "Use 2.")
    for error, key in ((ConfigError, "a.c"), (ConfigError, "a"), (UsageError, "a.b")):
        with pytest.raises((AssertionError, ConfigError)), refused(error, key, recorded=False):
            raise wrong
    ended = subprocess.CompletedProcess([], 2, "", "a.b = 1: is wrong.")
    said(ended, "a.b", recorded=False)
    for code, told in ((0, "a.b"), (2, "is wrong."), (2, "Traceback: a.b")):
        with pytest.raises(AssertionError):
            said(subprocess.CompletedProcess([], code, "", told), "a.b", recorded=False)


def _ran(folder: Path, problem: str, sizes: list[int], *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(HELPER)
    (folder / "test_it.py").write_text(MODULE.replace("PROBLEM", problem).replace("SIZES", str(sizes)))
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(folder), str(folder)]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:randomly", *options],
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        check=False,
    )


@pytest.mark.slow
def test_a_changed_message_fails_its_test_until_the_file_is_written_anew(tmp_path: Path) -> None:
    golden = tmp_path / "told.golden"
    assert "Message 1 is not as recorded" in _ran(tmp_path, "is wrong", [1, 2, 3]).stdout
    assert _ran(tmp_path, "is wrong", [1, 2, 3], "--rewrite-messages", "-n", "2").returncode == 0
    assert golden.read_text().count("is wrong") == 3
    changed = _ran(tmp_path, "is odd", [1, 2, 3])
    assert changed.returncode == 1
    assert "-size = 1: is wrong. Give another one.\n+size = 1: is odd. Give another one." in changed.stdout.replace(
        "E   ", ""
    ).replace("\n  ", "\n")
    _ran(tmp_path, "is odd", [1, 2], "--rewrite-messages", "--deselect", "test_it.py::test_a_size[2]")
    assert [line for line in golden.read_text().splitlines() if "- size" in line] == [
        "    - size = 1: is odd. Give another one.",
        "    - size = 2: is wrong. Give another one.",
    ]
