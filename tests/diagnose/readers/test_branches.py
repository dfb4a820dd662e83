"""Branches of scripts: the one that is taken, and what is not known where nobody knows which."""

from __future__ import annotations

import pytest

from diagnose.readers.branches import outcome
from tests.diagnose.readers.test_shell import words

SIZES = 'if [ "$S" = 7B ]; then\n H=4096\nelif [[ $S == 13B ]]; then\n H=5120\nelse\n H=8192\nfi\nrun $H'


@pytest.mark.parametrize(("size", "hidden"), [("7B", "4096"), ("13B", "5120"), ("70B", "8192")])
def test_of_branches_the_one_that_is_taken_counts(size: str, hidden: str) -> None:
    assert words(f"S={size}\n{SIZES}") == [["run", hidden]]


def test_what_branches_set_differently_is_not_set_where_nobody_knows_which() -> None:
    assert words(f"S=$1\n{SIZES}") == [["run", "$H"]]


def test_flags_that_one_of_two_unknown_branches_adds_are_left_out() -> None:
    text = 'A="--x"\nif [ $S = 1 ]; then\n A+=" --y"\nelse\n A+=" --z"\nfi\nrun $A'
    assert words(text) == [["run", "--x"]]


def test_what_both_unknown_branches_say_is_said() -> None:
    assert words("if [ $S = 1 ]; then X=3; Y=1; else X=3; Y=2; fi\nrun $X $Y") == [["run", "3", "$Y"]]


@pytest.mark.parametrize(("size", "hidden"), [("7b", "1"), ("7B", "1"), ("13B", "2"), ("x", "9")])
def test_a_case_is_matched_by_its_patterns(size: str, hidden: str) -> None:
    text = f'case {size} in\n 7B|"7b")\n  H=1 ;;\n 13B)\n  H=2\n  X=$(pwd)\n  ;;\n *) H=9 ;;\nesac\nrun $H'
    assert words(text) == [["run", hidden]]


def test_a_branch_inside_of_one_that_is_not_taken_is_not_taken() -> None:
    text = "X=1\nif [ $X = 2 ]; then\n if [ $X = 1 ]; then Y=3; fi\nelse\n Y=4\nfi\nrun $Y"
    assert words(text) == [["run", "4"]]


def test_a_test_decides_over_what_stands_behind_it() -> None:
    text = 'F=1\n[ "$F" = 1 ] && A="--f"\n[[ $F == 2 ]] && A+=" --g"\n[ -z "$Q" ] && Q=4\n[ -n "$F" ] || Q=5\nrun $A $Q'
    assert words(text) == [["run", "--f", "4"]]


def test_two_tests_in_one_condition_are_not_known() -> None:
    assert words("A=1\nif [ $A = 1 ] && [ $B = 2 ]; then X=1; else X=2; fi\nrun $X") == [["run", "$X"]]


@pytest.mark.parametrize("text", ["fi\nesac\nelse\nrun", "if\nrun", "case\nrun", "case $X in\nrun", "if [; then\nrun"])
def test_branches_that_are_cut_leave_no_traceback(text: str) -> None:
    words(text)


@pytest.mark.parametrize(
    ("test", "answer"),
    [
        ("8 -ge 4", True),
        ("8 -lt 4", False),
        ("a = a", True),
        ("a != a", False),
        ("llama-7b == llama*", True),
        ("! a = b", True),
        ("-z $X", True),
        ("-n $X", False),
        ("$X = 1", None),
        ("-f file", None),
        ("a -eq b", None),
    ],
)
def test_a_test_comes_to(test: str, answer: bool | None) -> None:
    assert outcome(test.split()) is answer
