"""Scripts as commands: quotes, continuations, comments, arrays, variables and sums."""

from __future__ import annotations

import pytest

from diagnose.readers.shell import script_of


def words(text: str, **known: str) -> list[list[str]]:
    return [[word.text for word in command] for command in script_of(text, known).commands]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a --b 1 --c=2", [["a", "--b", "1", "--c=2"]]),
        ("a \\\n  --b 1 \\\n  --c", [["a", "--b", "1", "--c"]]),
        ("a --b 1 # --c 2\nd", [["a", "--b", "1"], ["d"]]),
        ("a --b \\\n # --c \\\n --d", [["a", "--b", "--d"]]),
        ("a; b && c | d", [["a"], ["b"], ["c"], ["d"]]),
        ("X=3\na --b $X --c ${X}", [["a", "--b", "3", "--c", "3"]]),
        ("X=${Y:-7}\na $X ${Z:-8}", [["a", "7", "8"]]),
        ("X=2; Y=$((X * 4))\na $Y $((Y/4))", [["a", "8", "2"]]),
        ("X=(\n --b 1  # one\n --c 2\n)\na ${X[@]}", [["a", "--b", "1", "--c", "2"]]),
        ('X="--b 1 \\\n --c"\nX+=" --d"\na $X', [["a", "--b", "1", "--c", "--d"]]),
        ("a \"b c\" 'd $X'", [["a", "b c", "d $X"]]),
        ("a $UNSET", [["a", "$UNSET"]]),
        (': "${X:=3}"\na ${X} $X', [[":", "3"], ["a", "3", "3"]]),
        ('X=4\n: "${X:=3}"\na $X', [[":", "4"], ["a", "4"]]),
        ("export X=1 Y=2\na $X$Y", [["a", "12"]]),
        ("X=1 a --b $X", [["a", "--b", "1"]]),
        ('a "unclosed', [["a", '"unclosed']]),
        ("X=(--b 3)\nsrun bash -c 'a '\"${X[*]}\"' --c'", [["srun", "a", "--b", "3", "--c"]]),
        ("export X='--b 3'\nsrun bash -c 'a $X --c'", [["srun", "a", "--b", "3", "--c"]]),
        ("eval \"a --b 1 \\\n --c 'd e'\"", [["a", "--b", "1", "--c", "d e"]]),
        ("A=(b --c 1)\neval a ${A[@]}", [["eval", "a", "b", "--c", "1"]]),
    ],
)
def test_a_script_is_taken_apart(text: str, commands: list[list[str]]) -> None:
    assert words(text) == commands


def test_variables_of_the_scheduler_are_put_in() -> None:
    assert words("torchrun --nnodes $SLURM_NNODES x.py", SLURM_NNODES="4") == [["torchrun", "--nnodes", "4", "x.py"]]


def test_every_word_has_its_line() -> None:
    script = script_of("\n\nA='\n --x 1\n --y 2'\nrun $A \\\n --z\n")
    assert [(word.text, word.line) for word in script.commands[0]] == [
        *(("run", 6), ("--x", 4), ("1", 4), ("--y", 5), ("2", 5), ("--z", 7)),
    ]


def test_variables_that_name_each_other_end() -> None:
    assert words("A=$B\nB=$A\nA=$A$A$B\nrun $A")[0][0] == "run"


@pytest.mark.parametrize("text", ["X=$((9*9*9*9))\na $X", "a $((1/0))", "a $(rm -rf x)", "a `reboot`"])
def test_nothing_of_a_script_is_run(text: str) -> None:
    assert words(text)[0][0] == "a"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ('TP=4\nsrun -N 2 bash -c "torchrun --tp $TP x.py"', ["srun", "-N", "2", "torchrun", "--tp", "4", "x.py"]),
        ("TP=4\nsrun bash -lc 'cd /x; torchrun --tp $TP x.py'", ["srun", "torchrun", "--tp", "4", "x.py"]),
        (
            'run() {\n  local extra=$1\n  torchrun x.py $extra $2\n}\nrun "--a --b" 3',
            ["torchrun", "x.py", "--a", "--b", "3"],
        ),
        ('function go() {\n torchrun x.py "$@"\n}\ngo --a 1', ["torchrun", "x.py", "--a 1"]),
        ("run() {\n  torchrun x.py $1\n}\nrun --a\nrun --b", ["torchrun", "x.py", "$1"]),
    ],
)
def test_texts_that_a_shell_runs_and_functions_are_commands(text: str, last: list[str]) -> None:
    assert last in words(text)
