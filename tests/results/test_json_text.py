"""The head and the values of a JSON document."""

from __future__ import annotations

import json
from pathlib import Path

from results.machine_text import json_text
from train_core.measurement import Outcome


def test_what_json_does_not_know_becomes_null_or_text() -> None:
    text = json_text(
        "test", {"a": float("nan"), "b": (float("inf"), 1.5), "c": Path("/x"), "d": Outcome.FAILED, "e": True}
    )
    assert json.loads(text) == {
        "document": "test",
        "version": 1,
        "a": None,
        "b": [None, 1.5],
        "c": "/x",
        "d": "FAILED",
        "e": True,
    }
