"""How sentences are broken where a person reads them, and not where a program does."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cli.output import console as printing

COMMAND = "trisweep sweep smoke search.max_rounds=7 parallel.tp=1,2"
SENTENCES = f"Intervals are t-based and of several words. `{COMMAND}` measures the leaders further, on a quiet machine."


def printed(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, width: int) -> list[str]:
    stream = io.StringIO()
    monkeypatch.setattr(
        printing, "console", Console(file=stream, force_terminal=is_terminal, width=width, highlight=False)
    )
    printing.print_sentences(SENTENCES)
    return stream.getvalue().splitlines()


def test_a_terminal_breaks_sentences_between_words_and_commands_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, is_terminal=True, width=60)
    assert " ".join(lines) == SENTENCES.replace("`", "")
    assert max(map(len, lines)) <= 60
    assert any(COMMAND in line for line in lines)


def test_a_command_wider_than_the_terminal_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMMAND in printed(monkeypatch, is_terminal=True, width=40)


def test_a_pipe_has_each_paragraph_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, is_terminal=False, width=40) == [SENTENCES.replace("`", "")]


@pytest.mark.parametrize(("moment", "is_terminal", "is_shown"), [(0, True, True), (60, True, False), (0, False, False)])
def test_a_bar_is_shown_on_a_terminal_once_a_command_takes_more_than_a_moment(
    monkeypatch: pytest.MonkeyPatch, moment: float, is_terminal: bool, is_shown: bool
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(printing, "complaints", Console(file=screen, force_terminal=is_terminal, width=80))
    monkeypatch.setattr(printing, "MOMENT_SECONDS", moment)
    with printing.bar("Submitting trials") as tell:
        tell(1, 2)
        tell(2, 2)
    assert ("Submitting trials" in screen.getvalue()) is is_shown
    assert is_shown or not screen.getvalue()
