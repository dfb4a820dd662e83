"""The page of plans beside practice: both are priced, and the page says what was asked and who ran the other."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.expert_plans import PAGE, QUESTIONS, _section


def test_the_page_answers_every_question_there_is() -> None:
    page = PAGE.read_text()
    assert [question.title for question in QUESTIONS if f"\n## {question.title}\n" not in page] == []


@pytest.mark.slow
def test_a_section_prices_the_plan_found_and_the_one_that_was_run() -> None:
    question = next(each for each in QUESTIONS if "Qwen3" in each.title)
    worse = replace(question, practice={**question.practice, "recompute": "full"})
    text = " ".join("\n".join(_section(worse)).split())
    assert re.search(r"\| plan \| `tp1-[\w.-]+` \| `tp1-pp1-dp8-mb4-gb512-zero1-full-ep8` \|", text)
    assert "longer than that of the plan found, which is more than" in text
    assert question.source in text
