"""What bash offers for a line, asked as bash asks, with the equals sign as a word of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.completion import answer_bash, whole_words
from conf.folders import options

BASH = """
export PATH={folder}:$PATH
eval "$(_TRISWEEP_COMPLETE=source_bash trisweep)"
_complete() {{
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
  _trisweep_completion trisweep; printf '%s\\n' "${{COMPREPLY[@]}}"
}}
_complete {words}
"""


def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str] | None:
    """What is offered for the last word; None where Typer is to answer."""
    monkeypatch.setenv("COMP_WORDS", "\n".join(("trisweep", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return capsys.readouterr().out.split() if answer_bash() else None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("plan", "175b", "cluster", "=", "fr"), ["frontier"]),
        (("plan", "175b", "cluster", "="), options("cluster")),
        (("plan", "175b", "cluster=fr"), ["cluster=frontier"]),  # where the sign ends no word
        (("plan", "175b", "clu"), [f"cluster={name}" for name in options("cluster")]),
        (
            ("plan", "175b", "parallel.sequence_"),
            [f"parallel.sequence_parallel={value}" for value in ("false", "true")],
        ),
        (("plan", "175b", "parallel.sequence_parallel", "=", "t"), ["true"]),
        (("sweep", "175b", "sea"), [f"search={name}" for name in options("search")]),
        (("plan", "cluster", "=", "selene", "model", "=", "gpt-2"), ["gpt-22b", "gpt-22b-proxy"]),
        (("plan", "175b", "nothing", "=", "x"), []),
    ],
)
def test_overrides_are_completed(
    words: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(monkeypatch, capsys, *words) == expected


@pytest.mark.parametrize("words", [("pl",), ("plan", "17"), ("plan", "175b", "--se"), ("plan", "175b", "")])
def test_commands_sweeps_and_options_are_left_to_typer(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(monkeypatch, capsys, *words) is None


def test_keys_of_a_group_are_offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    keys = offered(monkeypatch, capsys, "plan", "175b", "parallel.")
    assert keys is not None
    assert {"parallel.world_size=", "parallel.tensor_parallel_size=", "parallel.recompute="} <= {*keys}


def test_a_line_is_put_together_again_before_typer_sees_it() -> None:
    split = ["trisweep", "plan", "cluster", "=", "selene", "model", "=", "--sea"]
    assert whole_words(split[:-1], 6) == (["trisweep", "plan", "cluster=selene", "model="], 3)
    assert whole_words([*split[:5], "--sea"], 5) == (["trisweep", "plan", "cluster=selene", "--sea"], 3)
    assert whole_words(split[:5], 5) == (["trisweep", "plan", "cluster=selene"], 3)


def test_ones_own_folder_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("name: mine\n")
    words = ("plan", "175b", "--config-dir", str(tmp_path), "cluster", "=", "mi")
    assert offered(monkeypatch, capsys, *words) == ["mi300x", "mi325x", "mi350x", "mi355x", "mine"]


@pytest.mark.slow
def test_a_real_bash_gets_the_answer_and_no_library_of_the_trainer_is_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "trisweep"
    check = "assert not {'torch', 'mlflow', 'pandas', 'hydra'} & {*sys.modules}"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom cli.entry import main\nmain()\n{check}\n")
    program.chmod(0o755)
    script = BASH.format(folder=tmp_path, words="trisweep plan 175b cluster = fr")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env={**os.environ})
    assert (done.stdout, done.stderr) == ("frontier\n", "")
