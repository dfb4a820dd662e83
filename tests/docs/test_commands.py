"""Every command that README and the pages show is one that exists, and those that take seconds are run here."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.main import app
from cli.output.console import console
from conf.compose.load import compose
from conf.overrides import Overrides
from sweeps.points.plan import plan_sweep
from tests.docs.documented import ROOT, shown_commands

RUN_HERE = ("plan", "estimate", "sweep")
RUN_ELSEWHERE = {
    "advance": "tests/launcher/control/test_conductor.py",
    "calibrate": "tests/cli/commands/calibrate",
    "cancel": "tests/slurm/test_commands.py",
    "diagnose": "tests/cli/commands/diagnose",
    "doctor": "tests/cli/commands/test_doctor.py",
    "export": "tests/cli/commands/test_train.py",
    "init": "tests/cli/commands/test_init.py",
    "list": "tests/cli/commands/test_list_and_show.py",
    "logs": "tests/cli/commands/test_logs.py",
    "metrics": "tests/cli/commands/test_metrics.py",
    "pause": "tests/launcher/control/test_conductor.py",
    "rehearse": "tests/cli/test_imports.py",
    "reindex": "tests/cli/commands/test_reindex.py",
    "report": "tests/cli/commands/test_report.py",
    "rerun": "tests/cli/commands/test_rerun.py",
    "resume": "tests/launcher/control/test_conductor.py",
    "retry": "tests/slurm/test_commands.py",
    "show": "tests/cli/commands/test_list_and_show.py",
    "status": "tests/cli/commands/test_status.py",
    "train": "tests/cli/commands/test_train.py",
    "ui": "tests/results/mlflow/test_ui.py",
}
"""Commands that need a measured sweep, a cluster or minutes, and where a smaller one of each is run."""

COMMANDS = shown_commands()
SEARCHING = {"--search", "--devices", "--scaling", "--explain", "--mixed", "search=planner", "search=bayes"}
PAGE = ROOT / "docs" / "how-to" / "hyperparameter-sweep.md"
FITS, LEARNING_RATES = (part.split("```")[0] for part in PAGE.read_text().split("```yaml\n")[1:])
SCRIPT = PAGE.read_text().split("```python\n")[1].split("```")[0]
TABLE = "gpu,num_gpus,layers,hidden,heads,seq,global_batch,micro_batch,tp,pp\nA100-80GB,8,24,2048,16,2048,64,4,1,1\n"
GPT2 = '{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 4096, "vocab_size": 50304}'


def words_of(program: str, commands: Sequence[str] = COMMANDS) -> list[list[str]]:
    return [shlex.split(command)[1:] for command in commands if command.startswith(f"{program} ")]


def run_here(commands: Sequence[str] = COMMANDS) -> dict[frozenset[str], list[str]]:
    """The words of each of these commands that is run here, where none submits anything; once if they are the same."""
    chosen = [words for words in words_of("trisweep", commands) if words[0] in RUN_HERE]
    dry = [[*words, "--dry-run"] if words[0] == "sweep" and "--cfg" not in words else words for words in chosen]
    return {frozenset(words): words for words in dry}


SHOWN, OF_README = run_here(), run_here(shown_commands([ROOT / "README.md"]))
ANSWER = (ROOT / "README.md").read_text().partition("    $ trisweep ")[2].partition("\n\nThese are")[0]
ANSWERED, *ANSWER_LINES = [line.strip() for line in ANSWER.splitlines()]


def takes_seconds(words: list[str]) -> bool:
    """Whether it searches and README does not show it."""
    return bool(SEARCHING.intersection(words)) and frozenset(words) not in OF_README


def test_the_pages_show_commands() -> None:
    assert len(words_of("trisweep")) > 40
    assert len(words_of("make")) > 10
    assert sum(not takes_seconds(words) for words in SHOWN.values()) > 20


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the pages tell of are in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "stderr", console.stderr)  # which --json changes for the rest of its process
    for name in ("in.csv", "mine.csv", "ours.csv"):
        (tmp_path / name).write_text(TABLE)
    (tmp_path / "config.json").write_text(GPT2)
    (tmp_path / "fit.py").write_text(SCRIPT)
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "lr.yaml").write_text(LEARNING_RATES)
    (tmp_path / "mine" / "sweep" / "fit.yaml").write_text(FITS)


@pytest.mark.slow
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=" ".join(words), marks=[pytest.mark.thorough] if takes_seconds(words) else [])
        for words in SHOWN.values()
        if words != shlex.split(ANSWERED)
    ],
)
def test_a_shown_command_runs(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.output.strip()


@pytest.mark.slow
def test_the_answer_in_readme_has_lines_that_the_command_prints_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 100)
    done = CliRunner().invoke(app, shlex.split(ANSWERED))
    assert done.exit_code == 0, done.output
    printed = [line.strip() for line in done.output.splitlines()]
    assert len(ANSWER_LINES) > 8
    assert [line for line in ANSWER_LINES if line not in ("...", *printed)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("words", [words for words in SHOWN.values() if takes_seconds(words)], ids=" ".join)
def test_a_shown_search_has_these_options_and_a_configuration_that_is_valid(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--cfg"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("words", [words for words in words_of("trisweep") if words[0] not in RUN_HERE], ids=" ".join)
def test_a_shown_command_that_takes_longer_has_these_options_and_is_run_by_another_test(words: list[str]) -> None:
    if words[0].startswith("--"):
        return  # of Typer itself
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    command = group.commands[words[0]]
    command.make_context(words[0], list(words[1:]))
    assert (ROOT / RUN_ELSEWHERE[words[0]]).exists()


def named_trials() -> list[tuple[str, str]]:
    """Each shown part of a trial's name, after the sweep that it is of."""
    found = list[tuple[str, str]]()
    for command, sweep, *rest in (words for words in words_of("trisweep") if len(words) > 2):
        by_option = [after for word, after in pairwise(rest) if word == "--trial"]
        by_place = [word for word in rest[:1] if command in ("logs", "rerun") and not word.startswith("-")]
        found += [(sweep, name) for name in (*by_option, *by_place) if "=" not in name]
    return list(dict.fromkeys(found))


@pytest.mark.slow
@pytest.mark.parametrize(("sweep", "name"), named_trials())
def test_a_shown_part_of_a_name_means_one_trial_of_its_sweep(sweep: str, name: str) -> None:
    """With a cluster, as the pages have it; `smoke` is measured as it stands."""
    record = plan_sweep(compose(Overrides.choosing("sweep", sweep)), proxy=False, git_sha="")
    assert sum(name in trial.trial_id for trial in record.trials if trial.selected) == 1


@pytest.mark.parametrize("words", words_of("make"), ids=" ".join)
def test_a_shown_target_exists_and_calls_what_exists(words: list[str]) -> None:
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough  # than launcher/command_trainer
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # MLflow's own
def test_the_script_of_the_page_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "fit.yaml").write_text(FITS)
    (tmp_path / "fit.py").write_text(SCRIPT)
    words = ["sweep", "fit", "training.learning_rate=0.1", "--config-dir", "mine", "--here"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "reached the lowest loss" in " ".join(done.output.split())
