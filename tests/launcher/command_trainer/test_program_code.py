"""The digest of a program's code changes with its scripts and with what they import, and with nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.command_trainer.job import run_here
from launcher.command_trainer.performance import present_code, program_code
from tests.launcher.command_trainer.conftest import STEPS, MakeTrial

FILES = {
    "train.py": "import math, models.gpt\nfrom helpers import rates\n",
    "models/__init__.py": "",
    "models/gpt.py": "from . import block\nfrom ..helpers import rates\n",
    "models/block.py": "import nothing_of_ours\n",
    "helpers/rates.py": "import train\n",  # in a circle, in a folder without __init__.py
    "other.py": "",
    "settings.yaml": "",
    "start.sh": "#!/bin/sh\n",
}
COMMAND = ("python3", "train.py", "--config", "settings.yaml", "--lr", "0.1")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / name).write_text(content)
    return tmp_path / "p"


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("train.py", True),
        ("models/__init__.py", True),
        ("models/gpt.py", True),
        ("models/block.py", True),
        ("helpers/rates.py", True),
        ("other.py", False),
        ("settings.yaml", False),
    ],
)
def test_what_a_script_imports_counts_and_what_it_does_not_import_does_not(
    program: Path, changed: str, counts: bool
) -> None:
    before = program_code(COMMAND, program)
    with (program / changed).open("a") as file:
        file.write("# changed\n")
    assert (program_code(COMMAND, program) != before) is counts


def test_the_same_program_is_the_same_code_however_it_is_named_and_wherever_it_lies(program: Path) -> None:
    code = program_code(COMMAND, program)
    assert len(code) == 12
    assert program_code(("python3", "-m", "train"), program) == code
    moved = program.rename(program.with_name("elsewhere"))
    assert program_code(("torchrun", str(moved / "train.py")), Path("/")) == code


def test_other_scripts_count_by_their_first_line_and_a_command_without_script_has_no_code(program: Path) -> None:
    assert program_code(("./start.sh",), program) not in ("", program_code(COMMAND, program))
    assert program_code(("settings.yaml", "-c", "print(1)", "--lr=\0", "x" * 5000, "-m"), program) == ""


def test_a_script_that_cannot_be_parsed_is_known_by_its_bytes(program: Path) -> None:
    (program / "train.py").write_text("def broken(:\n")
    assert program_code(COMMAND, program)


def test_a_measurement_holds_the_code_that_its_program_had_when_it_started(
    make_trial: MakeTrial, tmp_path: Path
) -> None:
    trial = make_trial(f"import sys\n{STEPS}\nopen(sys.argv[0], 'a').write('# edited meanwhile')\n")
    code = program_code(("program.py",), tmp_path)
    environment = run_here(trial.path).environment
    assert environment is not None
    assert environment.trainer_code == code != program_code(("program.py",), tmp_path)


@pytest.mark.parametrize("words", [["{python}", "program.py"], ["{python}", "program.py", "{huggingface_starter}"]])
def test_a_program_that_nobody_changed_has_the_code_with_which_it_was_measured(
    make_trial: MakeTrial, tmp_path: Path, words: list[str]
) -> None:
    """Also where the interpreter is a script, as at sites that wrap it, or one of ours starts the program."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    own = {"trainer.command": words, "trainer.python": str(python), "trainer.working_dir": str(tmp_path)}
    trial = make_trial(STEPS, own)
    environment = run_here(trial.path).environment
    assert environment is not None
    assert environment.trainer_code == present_code(trial.read_experiment(), trial.path) != ""
