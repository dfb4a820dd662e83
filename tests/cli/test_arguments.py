"""The words of a command as overrides."""

from __future__ import annotations

import pytest

from cli.arguments import overrides_of
from conf.errors import UsageError


def test_a_sweep_named_twice_is_told_in_plain_words() -> None:
    with pytest.raises(UsageError, match=r"Two sweeps were named, 175b and sweep=22b\. Name one of them\."):
        overrides_of("175b", ["sweep=22b"])
    assert overrides_of(None, ["sweep=22b"]).stated_value("sweep") == "22b"
