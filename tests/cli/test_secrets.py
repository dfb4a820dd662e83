"""Secrets get nowhere: neither those of the environment nor those of the configuration."""

from __future__ import annotations

import shutil
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.conftest import OF_HOOK, OF_JOBS, SECRET, Command


def files_with(secret: str, folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path.relative_to(folder)) for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("secret", [SECRET, OF_HOOK])
def test_a_measured_sweep_holds_neither_a_variable_of_the_environment_nor_its_webhook(
    secret: str, finished: Path
) -> None:
    """Records, logs, reports, snapshots of the code, the store of MLflow, and what the command said."""
    assert (finished / "runs" / "mlflow.db").exists()
    assert files_with(secret, finished) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (OF_JOBS, "# slurm.environment.MY_KEY=*** from the command line"),
        (f"{OF_JOBS},b", "gives several values"),
        (f"{{{OF_JOBS}", "holds characters"),
        ("4711", "# slurm.environment.MY_KEY=*** from the command line"),
        ("[4711]", "must be a text"),
    ],
)
def test_no_message_shows_a_variable_of_jobs(value: str, said: str, tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("show", f"slurm.environment.MY_KEY={value}", cwd=tmp_path)
    words = " ".join((done.stdout + done.stderr).split())
    assert said in words
    assert OF_JOBS not in words
    assert "4711" not in words


PROGRAM = """
import hashlib, os, sys
told = [os.environ["MY_PASSWORD"], *(sys.argv[sys.argv.index(flag) + 1] for flag in ("--api-key", "--hub_token"))]
with open(os.environ["FOLDER"] + "/told", "w") as file:
    print(*(hashlib.sha256(each.encode()).hexdigest() for each in told), file=file)
for step in (1, 2, 3, 4):
    print(f"step {step} loss 4 time 0.5 s")
"""
MARKED = {name: f"nobody-sees-{name}" for name in ("variable", "word", "flag")}
TOLD = " ".join(sha256(MARKED[name].encode()).hexdigest() for name in MARKED)


def with_secrets(folder: Path, marked: dict[str, str] = MARKED) -> list[str]:
    (folder / "fit.py").write_text(PROGRAM)
    return [
        *("smoke", "trainer=command", "trainer.start=once", "training.num_steps=4", "tracking.live_seconds=null"),
        f"trainer.command=[{sys.executable},{folder}/fit.py,--api-key,{marked['word']}]",
        f"+trainer.flags.hub_token={marked['flag']}",
        f"+trainer.environment.MY_PASSWORD={marked['variable']}",
        "+trainer.environment.FOLDER='{trial_folder}'",
        "sweep.axes={training.seed: [1]}",
    ]


@pytest.fixture(scope="module")
def told_secrets(tmp_path_factory: pytest.TempPathFactory, trisweep: Command) -> Path:
    """A finished sweep whose program was told secrets, with all that commands about it have said."""
    folder = tmp_path_factory.mktemp("told")
    words = with_secrets(folder)
    said = ""
    for command in (
        ("show", "sweep=smoke", *words[1:]),
        ("sweep", *words, "--here", "--json"),
        ("report", "smoke", "--json"),
    ):
        done = trisweep(*command, cwd=folder)
        assert done.returncode == 0, (command, done.stderr)
        said += done.stdout + done.stderr
    (folder / "said").write_text(said)
    return folder


def test_a_program_is_told_its_secrets_and_no_file_but_private_ones_and_no_output_holds_them(
    told_secrets: Path,
) -> None:
    """Journal, records, provenance, reports in three forms, MLflow's store, printed commands, dry runs and JSON."""
    assert "***" in (told_secrets / "said").read_text()
    assert {path.read_text().strip() for path in told_secrets.glob("runs/*/trials/*/told")} == {TOLD}
    for secret in MARKED.values():
        holders = [told_secrets / each for each in files_with(secret, told_secrets)]
        assert {path.name for path in holders} == {"private.json"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in holders)


@pytest.mark.slow
@pytest.mark.thorough  # test_a_program_is_told_its_secrets_...
def test_secrets_reach_a_trial_that_runs_again_after_the_shell_is_gone_and_new_ones_make_a_new_trial(
    told_secrets: Path, trisweep: Command, tmp_path: Path
) -> None:
    shutil.copytree(told_secrets, tmp_path, dirs_exist_ok=True)
    trials = {path.name for path in tmp_path.glob("runs/*/trials/*")}
    dry, other = with_secrets(tmp_path), with_secrets(tmp_path, MARKED | {"variable": "x"})
    said = ""
    for words in (["rerun", "smoke", min(trials)], ["sweep", *dry, "--here", "--dry-run"], ["sweep", *other, "--here"]):
        done = trisweep(*words, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
        said += done.stdout + done.stderr
    assert not any(secret in said for secret in MARKED.values())
    assert [path.read_text().strip() for path in tmp_path.glob("runs/rerun/*/told")] == [TOLD]
    assert len(list(tmp_path.glob("runs/*/trials/*"))) == 2 * len(trials)


@pytest.mark.parametrize(
    "words",
    [
        ["+trainer.environment.A=[4711]"],
        ["trainer.environment={A: {B: s4711}}"],
        ["trainer.command=[python,--api-key=s4711]"],
        ["+trainer={environment: {A: s4711}}"],
        ["trainer=command", "trainer.command=[python3,fit.py,--token,s4711]", "trainer.start=nobody"],
    ],
)
def test_no_refusal_shows_a_secret_of_a_program(words: list[str], tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("show", "sweep=smoke", *words, cwd=tmp_path)
    assert done.returncode != 0
    assert "4711" not in done.stdout + done.stderr
