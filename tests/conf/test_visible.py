"""What acts in a terminal, a browser or a Markdown reader is seen, and does nothing."""

from __future__ import annotations

import json

import pytest

from conf.visible import markdown_text, visible, visible_in_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\rb\x07\x00\x7f\x9b", r"a\rb\x07\x00\x7f\x9b"),
        ("user\u202etxt.exe\u2066", r"user\u202etxt.exe\u2066"),
        ("\ud800", r"\ud800"),
        ("plain: é 中 😀 \t\n", "plain: é 中 😀 \t\n"),
        (r"already \x1b", r"already \x1b"),
    ],
)
def test_control_characters_are_shown_by_their_codes(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


@pytest.mark.parametrize(
    "text", ["\x1b]8;;x\x07 \u202e \x00", "é 😀 \n\t", "back\\slash \\u001b", "\\\x1b", "\\\\\x9b"]
)
def test_texts_in_json_show_theirs_and_keep_the_rest(text: str) -> None:
    seen = json.loads(visible_in_json(json.dumps({"value": text})))["value"]
    assert visible(seen) == seen
    if visible(text) == text:
        assert seen == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("[a](javascript:alert(1))", r"[a]\(javascript:alert(1))"),
        ("![a](https://tracker)", r"![a]\(https://tracker)"),
        ("one\n[b]: javascript:x\n\n# two", "one [b]: javascript:x # two"),
        ("give `a[0](b) <c>` now", "give `a[0](b) <c>` now"),
        ("`[x](javascript:y)``", r"`[x]\(javascript:y)``"),
        ("``[x](javascript:y)`", r"``[x]\(javascript:y)`"),
        ("\x1b[31m", r"\x1b[31m"),
    ],
)
def test_a_sentence_for_markdown_has_no_tag_and_no_link_and_keeps_its_code(text: str, written: str) -> None:
    assert markdown_text(text) == written
