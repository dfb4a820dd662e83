"""The head and the values of a JSON document."""

from __future__ import annotations

import json
from pathlib import Path

from results.render.json_and_csv import json_lines
from train_core.trial.measurement import Outcome


def test_what_json_does_not_know_becomes_null_or_text() -> None:
    text = "".join(
        json_lines(
            "test", {"a": float("nan"), "b": (float("inf"), 1.5), "c": Path("/x"), "d": Outcome.FAILED, "e": True}
        )
    )
    assert json.loads(text) == {
        "document": "test",
        "version": 4,
        "a": None,
        "b": [None, 1.5],
        "c": "/x",
        "d": "FAILED",
        "e": True,
    }


def test_each_entry_of_a_list_is_a_line_and_comes_when_it_is_asked_for() -> None:
    rows = [{"n": number, "of": {"text": "a\nb"}} for number in range(1000)]
    lines = json_lines("test", {"rows": rows, "none": [], "last": {}})
    begun = [next(lines) for _ in range(4)]
    rows[999]["n"] = "seen late"
    text = "".join([*begun, *lines])
    assert json.loads(text) == {"document": "test", "version": 4, "rows": rows, "none": [], "last": {}}
    assert text.count("\n") == 1000 + 8
