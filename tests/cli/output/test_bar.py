"""A bar for whoever waits, and only then."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from cli.output import bar as bars


@pytest.mark.parametrize(("moment", "is_terminal", "is_shown"), [(0, True, True), (60, True, False), (0, False, False)])
def test_a_bar_is_shown_on_a_terminal_once_a_command_takes_more_than_a_moment(
    monkeypatch: pytest.MonkeyPatch, moment: float, is_terminal: bool, is_shown: bool
) -> None:
    screen = StringIO()
    monkeypatch.setattr(bars, "complaints", Console(file=screen, force_terminal=is_terminal, width=80))
    monkeypatch.setattr(bars, "MOMENT_SECONDS", moment)
    with bars.bar("Submitting trials") as tell:
        tell(1, 2)
        tell(2, 2)
    assert ("Submitting trials" in screen.getvalue()) is is_shown
    assert is_shown or not screen.getvalue()
