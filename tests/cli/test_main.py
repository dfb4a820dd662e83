"""Whatever goes wrong in a command is one message."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.main import HelpfulGroup, app, main
from tests.cli.conftest import Command


@pytest.mark.parametrize("command", ["plan", "sweep", "ui"])
def test_help_names_what_an_option_takes_in_plain_words(command: str) -> None:
    described = CliRunner().invoke(app, [command, "--help"]).output.partition("Options")[2]
    assert "--quiet" in described
    assert not re.search(r"<\w+>|int range|float range", described)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "175"], r"sweep = '175': is not an option of this group\. Did you mean 175b\?"),
        (["sweep", "175b", "cluster=frontir"], r"cluster = 'frontir': .*Did you mean frontier\?"),
        (["plan", "175b", "sweep.max_trails=3"], r"sweep\.max_trails = '3': .*Did you mean sweep\.max_trials\?"),
        (["plan", "175b", "batch.micro_batch_size=0"], r"batch\.micro_batch_size = 0: must be greater than 0"),
        (["plan", "175b", "--tokens", "nan"], r"--tokens = 'nan': must be a number from 1 to 1e\+18"),
        (["plan", "175b", "cluster.device.memory_bytes=-1"], r"cluster\.device\.memory_bytes = -1: "),
        (["sweep", "175b", "cluster=frontier"], r"there is no sbatch on the PATH"),
        (["status", "175b"], r"No sweep 175b has been started in .*Start it with `trisweep sweep 175b`"),
        (["report", "22b"], r"No sweep 22b has been started in"),
        (["sweep", "smoke", "--here", "data.path=/nonexistent.txt"], r"data\.path = '/nonexistent\.txt'"),
        (["ui"], r"There is no MLflow store"),
        (["train", "modle=tiny"], r"modle = 'tiny': is not a key or group.*Did you mean model\?"),
        (["train", "parallel.world_size=16"], r"world_size = 16: is more than the 8 devices of cluster local"),
        pytest.param(
            ["train", "data=megatron", "data.path=/nowhere"],
            r"data\.path = '/nowhere': /nowhere\.idx: No such file",
            marks=pytest.mark.thorough,  # than train_core/data/test_indexed_dataset
        ),
        (["train", "--name", "x"], r"--name and --here apply only to a training from a sweep"),
        (["train", "--from-best", "smok"], r"--from-best = 'smok': is not a known sweep\. Did you mean smoke\?"),
        (["train", "--from-best", "smoke=3"], r"--from-best = 'smoke=3': is not a known sweep\. Did you mean smoke\?"),
        (
            ["train", "--from-best", "tiny"],
            r"--from-best = 'tiny': is not a known sweep\. It is an option of group model: write",
        ),
        (["train", "--from-best", "smoke", "--here"], r"No sweep smoke has been started in .*`trisweep sweep smoke`"),
        (
            ["train", "--from-best", "smoke", "--here", "--name", "../../evil"],
            r"--name = '\.\./\.\./evil': is not a plain name\. Use letters, digits",
        ),
        (
            ["sweep", "smoke", "--there"],
            r"^trisweep: No such option: --there\. Did you mean .*--here\? `trisweep sweep",
        ),
        (
            ["plan", "175b", "--serch"],
            r"--serch\. Did you mean --sbatch or --search\? `trisweep plan --help` says",
        ),
        (
            ["plan", "175b", "-m"],
            r"^trisweep: No such option: -m, which is one of Hydra's\. Points come from the axes of",
        ),
        (["plan", "175b", "--gpus", "8"], r"^trisweep: No such option: --gpus\. `trisweep plan --help` says"),
        (["plan", "175b", "--top", "0"], r"^trisweep: --top = '0': is below 1\. `trisweep plan --help`"),
        (["plan", "175b", "--steps", "many"], r"^trisweep: --steps = 'many': is not a whole number\."),
        (["plan", "model=llama-2-7b", "--devices", "2048"], r"cluster local, which has .* another cluster=NAME\."),
        (["plan", "175b", "--budget", "lots"], r"^trisweep: --budget = 'lots': is not a number\."),
        (["ui", "--port", "70000"], r"^trisweep: --port = '70000': is above 65535\."),
        (["status"], r"^trisweep: Missing argument 'name'\. `trisweep status --help`"),
        (["plna", "175b"], r"^trisweep: No such command 'plna'\. Did you mean 'plan'\? `trisweep --help`"),
        (["plan", "175b", "cluster=frontier,selene"], r"gives several values.*plan --clusters frontier,selene"),
        (["plan", "175b", "parallel.tensor_size=2"], r"Did you mean parallel\.tensor_parallel_size\?"),
        (["status", "smoke", "output_dir='[/x]'"], r"has been started in .*/\[/x\]\. Start it with"),
    ],
)
def test_bad_input_is_one_message_exit_code_2_and_nothing_written(
    arguments: list[str], message: str, tmp_path: Path, trisweep: Command
) -> None:
    done = trisweep(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(message, " ".join(done.stderr.split())), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_paragraphs_of_a_help_are_broken_by_the_terminal_alone() -> None:
    commands = typer.main.get_command(app)
    assert isinstance(commands, HelpfulGroup)
    texts = {name: each.help or "" for name, each in commands.commands.items()}
    assert all(texts.values())
    assert [name for name, text in texts.items() if "\n" in text.replace("\n\n", "")] == []


def test_completion_offers_sweeps(tmp_path: Path, trisweep: Command) -> None:
    asked = {"_TRISWEEP_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    sweeps = trisweep(cwd=tmp_path, COMP_WORDS="trisweep plan 1", **asked)
    assert set(sweeps.stdout.split()) == {"175b", "1t"}


def test_completion_offers_sweeps_of_folders_that_the_line_names(tmp_path: Path, trisweep: Command) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "mine.yaml").write_text("name: mine\n")
    words = ("plan", "--config-dir", str(tmp_path), "min")
    asked = {"_TRISWEEP_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words))}
    done = trisweep(cwd=tmp_path, COMP_WORDS="\n".join(("trisweep", *words)), **asked)
    assert done.stdout.split() == ["mine"]


@pytest.mark.slow
def test_a_width_of_nothing_is_no_width(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from cli.entry import main; main()", "list"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "0"}
    )
    assert "sweep" in done.stdout


@pytest.mark.slow
def test_a_document_for_a_closed_stdout_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'from cli.entry import main; main()' list --json >&-"
    done = subprocess.run(command, cwd=tmp_path, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_behind_stdout_is_not_blamed_on_the_output_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from cli.entry import main; main()", "plan", "smoke"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "trisweep: What the command printed could not be written: No space left on device.\n"


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("file", ["sweep.json", "trial.json", "private.json"])
def test_a_file_server_that_fails_while_a_file_gets_its_name_is_one_message(tmp_path: Path, file: str) -> None:
    """A fault that no file system has at hand is put in where Python would ask it."""
    broken = (
        "import errno, os, pathlib, sys\n"
        "replace = pathlib.Path.replace\n"
        "def fail(path, target):\n"
        f"    if str(target).endswith({file!r}):\n"
        "        raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))\n"
        "    return replace(path, target)\n"
        "pathlib.Path.replace = fail\n"
        "from cli.main import main\n"
        "main()\n"
    )
    words = ["sweep", "smoke", "--here", "sweep.max_trials=1", "+slurm.environment.A=b"]
    done = subprocess.run(
        [sys.executable, "-c", broken, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert "Traceback" not in said
    assert f"{file}: Input/output error. Give the command again once the file system works" in said


DONE_ONCE = "what is done is not done twice."


@pytest.mark.parametrize(
    ("number", "place", "remedy"),
    [
        (errno.EACCES, "new/x", "Choose another folder with output_dir=PATH."),
        (errno.EIO, "new/x", f"{DONE_ONCE} Or choose another folder with output_dir=PATH."),
        (errno.EIO, "runs/smoke-local/x", DONE_ONCE),
        (errno.ENOSPC, "new/x", f"Free space there, and give the same command again: {DONE_ONCE}"),
        (errno.EDQUOT, "runs/smoke-local/x", f"Free space there, and give the same command again: {DONE_ONCE}"),
        (errno.EROFS, "runs/smoke-local/x", f"Correct that, and give the same command again: {DONE_ONCE}"),
        (errno.EACCES, "runs/mlflow.db", f"Correct that, and give the same command again: {DONE_ONCE}"),
        (errno.EACCES, "runs/others-local/trials/x", "have user 4321 do it, or let you write there."),
    ],
)
def test_what_to_do_about_a_folder_suits_what_is_in_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    place: str,
    remedy: str,
) -> None:
    for name in ("smoke-local", "others-local"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "sweep.json").touch()
    if "others" in place and os.geteuid() == 0:
        os.chown(tmp_path / "runs" / "others-local", 4321, -1)
    elif "others" in place:
        pytest.skip("only root may give files away")
    path, why = str(tmp_path / place), os.strerror(number)

    def fail(**_: object) -> None:
        raise OSError(number, why, path)

    monkeypatch.setattr("cli.main.app", fail)
    monkeypatch.setattr("cli.main.keep_private", lambda: None)  # of a process of its own alone
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"trisweep: {path}: {why}. ")
    assert said.endswith(remedy)
    assert ("output_dir=PATH" in said) is ("output_dir=PATH" in remedy)
