"""Mistakes that all trials of a sweep share: they are found before the first trial, or after two or three of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import ConfigError
from launcher.command_trainer.job import run_here as run_program
from launcher.command_trainer.program_check import require_programs
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from tests.conftest import BuildRecord
from tests.launcher.control.test_conductor import Seeds, adaptive, carried_out
from tests.launcher.test_run_here import seeds
from train_core.trial.measurement import Outcome

OWN = ("trainer=command", "trainer.start=once")


def swept(build_record: BuildRecord, tmp_path: Path, program: str, count: int = 6, *more: str) -> tuple[int, str]:
    """How many trials of a sweep ran, and why it ended."""
    script = tmp_path / "program.py"
    script.write_text(program)
    command = f"trainer.command=['{{python}}',{script},'{{training.seed}}']"
    record = build_record(seeds(count), (*OWN, command, *more))
    folder = SweepFolder(tmp_path / "runs" / "test-local")
    folder.write_record(record)
    rules = replace(adaptive(Seeds(count)), max_concurrent_trials=1)
    done = carried_out(Sweep(folder, record), rules, lambda path, devices, limit: run_program(Path(path)))
    ran = [each for each in done.sweep.read() if each.outcome is not Outcome.PENDING]
    return len(ran), done.history.finished or ""


@pytest.mark.parametrize(
    ("program", "num_run", "cause"),
    [
        ("print('it 1 of 3: 4.8')", 2, "nothing measurable in its log"),
        ("def f(:", 2, "SyntaxError"),
        ("import nothing_of_this_name", 2, "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("import argparse; argparse.ArgumentParser().parse_args()", 2, "unrecognized arguments: "),
        ("raise ValueError('the data are not there')", 3, "ValueError: the data are not there"),
        (
            "import sys; [print(f'step {each} loss 4 time 1 s') for each in (0, 100, 200 + int(sys.argv[1]))]",
            2,
            "are beyond training.num_steps",
        ),
        ("print('step 1 loss 4 time 0,2 s'); print('step 2 loss 4 time 0,2 s')", 2, "trainer.log.decimal=comma"),
    ],
)
def test_a_mistake_that_all_trials_share_stops_the_sweep(
    program: str, num_run: int, cause: str, build_record: BuildRecord, tmp_path: Path
) -> None:
    ran, finished = swept(build_record, tmp_path, program)
    assert ran == num_run
    assert finished.startswith(f"{num_run} trials failed alike, and none has completed: ")
    assert cause in finished


SOME_FAIL = """
import sys
seed = int(sys.argv[1])
if seed in (1, 2, 3, 4):
    raise ValueError("too large")
for step in range(1, 4):
    print(f"step {step} loss 1.5 time 0.1 s")
"""


def test_points_that_fail_alike_beside_one_that_completes_stop_nothing(
    build_record: BuildRecord, tmp_path: Path
) -> None:
    assert swept(build_record, tmp_path, SOME_FAIL)[0] == 6


@pytest.mark.parametrize("words", ["raise ValueError(f'seed {sys.argv[1]} is odd')", "sys.exit(int(sys.argv[1]) + 1)"])
def test_causes_of_their_own_stop_nothing(words: str, build_record: BuildRecord, tmp_path: Path) -> None:
    assert swept(build_record, tmp_path, f"import sys\n{words}", 4)[0] == 4


def refusal(build_record: BuildRecord, *overrides: str, on_slurm: bool = False) -> str:
    record = build_record([{}], (*OWN, *overrides))
    try:
        require_programs(record, on_slurm=on_slurm)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run.sh").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["'{python}'", "tain.py"], "Did you mean train.py?"),
        (["python3", "-u", "src/train.py"], "names src/train.py, and there is no such file in "),
        (["bash", "start.sh"], "names start.sh"),
        (["deepspeed", "'--num_gpus=2'", "tain.py"], "Did you mean train.py?"),
        (["./tain.py"], "names ./tain.py"),
        (["/opt/nowhere/bin/trainer", "--lr", "1"], "names /opt/nowhere/bin/trainer"),
        (["no-such-program", "--lr", "1"], "no program of this name is on the PATH"),
    ],
)
def test_a_program_that_is_not_there_is_refused(
    words: Sequence[str], missing: str, checkout: Path, build_record: BuildRecord
) -> None:
    command, folder = f"trainer.command=[{','.join(words)}]", f"trainer.working_dir={checkout}"
    assert missing in refusal(build_record, command, folder)
    # The modules of a job may bring a name that is not on the PATH here.
    assert (missing in refusal(build_record, command, folder, on_slurm=True)) == ("PATH" not in missing)
    assert refusal(build_record, command, folder, "trainer.prefix=[env]", on_slurm=True) == ""


@pytest.mark.parametrize(
    "words",
    [
        ["'{python}'", "train.py"],
        ["python3", "-m", "package.train", "conf.py"],
        ["python3", "-c", "'print(1)'"],
        ["bash", "run.sh"],
        ["'{python}'", "'{trial_folder}/made.py'"],
        ["'{python}'", "train.py", "--config", "made_later.py"],
        ["env", "'A=1'", "python3", "train.py"],
    ],
)
def test_a_program_that_is_there_is_not(words: Sequence[str], checkout: Path, build_record: BuildRecord) -> None:
    assert refusal(build_record, f"trainer.command=[{','.join(words)}]", f"trainer.working_dir={checkout}") == ""


@pytest.mark.parametrize("on_slurm", [False, True])
def test_a_checkout_that_is_not_there_is_refused(on_slurm: bool, build_record: BuildRecord) -> None:
    said = refusal(build_record, "trainer.command=[train.py]", "trainer.working_dir=/no/checkout", on_slurm=on_slurm)
    assert said.startswith("trainer.working_dir = '/no/checkout': is not a folder here. ")
    assert ("trainer.prefix=[env]" in said) == on_slurm


def test_what_torchrun_starts_is_looked_for_too(checkout: Path, build_record: BuildRecord) -> None:
    by_torchrun = ("trainer.start=torchrun", f"trainer.working_dir={checkout}")
    assert refusal(build_record, *by_torchrun, "trainer.command=[train.py]") == ""
    assert refusal(build_record, *by_torchrun, "trainer.command=[-m,torchtitan.train]") == ""
    assert "names tain.py" in refusal(build_record, *by_torchrun, "trainer.command=[tain.py]")
    python = refusal(build_record, *by_torchrun, "trainer.command=[train.py]", "trainer.python=/no/venv/bin/python")
    assert "names /no/venv/bin/python" in python
