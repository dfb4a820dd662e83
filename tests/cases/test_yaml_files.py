"""YAML files as people and their editors write them: taken as they are meant, or one message that names the file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import train_core.__main__
from conf.compose.load import compose_tree, load
from conf.compose.tree import value_at
from conf.errors import EXIT_USAGE, ConfigError
from conf.folders import VARIABLE
from conf.types.sweep_spec import SweepSpec
from tests.messages import refused

Write = Callable[[str, str | bytes], Path]

SWEEP = """\
defaults:
  - override /model: tiny
  - override /precision: fp32
training: {num_steps: 7, num_warmup_steps: 1}
sweep:
  name: mine
  question: which
  baseline: {}
  axes: {training.seed: [1, 2]}
  points: []
  max_trials: 4
  published: []
  proxy: null
"""
FIRST = "# @package _global_\n"
ALONE = re.sub(r"^  ", "", SWEEP[SWEEP.index("  name:") :], flags=re.MULTILINE)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """`write("sweep/mine.yaml", text)`: a file in a folder of configuration of one's own."""

    def writing(path: str, text: str | bytes) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return writing


def sweep_of(*overrides: str) -> SweepSpec:
    spec = load(["sweep=mine", *overrides]).sweep
    assert spec is not None
    return spec


@pytest.mark.parametrize(
    "text",
    [
        SWEEP,
        FIRST + SWEEP,
        "\ufeff" + FIRST + SWEEP,
        "\ufeff" + SWEEP,
        (FIRST + SWEEP).replace("\n", "\r\n"),
        "---\n" + FIRST + SWEEP,
        "%YAML 1.2\n---\n" + FIRST + SWEEP,
        "# Mine.\n\n" + FIRST + SWEEP,
        "#@package   _global_\n" + SWEEP,
        "# @package global\n" + SWEEP,
        "# @package: _global_\n" + SWEEP,
        (FIRST + SWEEP).encode("utf-16"),
        ("\ufeff" + FIRST + SWEEP.replace("which", "größer?")).encode("utf-16-be"),
        FIRST + SWEEP + "...\n",
    ],
    ids=str,
)
def test_a_sweeps_file_is_taken_whatever_stands_in_front_of_it(write: Write, text: str | bytes) -> None:
    write("sweep/mine.yaml", text)
    settings = load(["sweep=mine"])
    assert settings.sweep is not None
    assert settings.sweep.axes["training.seed"].values == (1, 2)
    assert (settings.training.num_steps, settings.model.name) == (7, "tiny")


def test_a_file_of_the_keys_of_a_sweep_alone_is_one(write: Write) -> None:
    write("sweep/mine.yaml", ALONE)
    assert sweep_of().question == "which"


def test_a_file_in_another_group_keeps_its_first_line_behind_comments(write: Write) -> None:
    write("notify/mine.yaml", "# Ours.\n# @package batch\nglobal_batch_size: 16\n")
    assert value_at(compose_tree(["notify=mine"]), "batch.global_batch_size") == 16
    write("slurm/mine.yaml", "\ufeffdefaults: [default, _self_]\r\npartition: gpu\r\n")
    assert load(["slurm=mine"]).slurm.partition == "gpu"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (SWEEP.replace("override /model", "/model"), "defaults"),
        (SWEEP.replace("override /model", "model"), "defaults"),
        (SWEEP.replace("override /model", "override /modell"), "defaults"),
        (SWEEP.replace("override /model", "override model"), "defaults"),
        (SWEEP.replace("model: tiny", "model: tinny"), "model"),
        (SWEEP.replace("defaults:", "default:"), "default"),
        (SWEEP.replace("defaults:", "Defaults:"), "Defaults"),
        (SWEEP.replace("  - override /model: tiny\n  - over", "  over"), "defaults"),
        (SWEEP + "training: {num_steps: 8}\n", "conf"),
        (SWEEP + "---\n" + SWEEP, "conf"),
        (SWEEP.replace("  question", "\tquestion"), "conf"),
        (SWEEP.replace("  - over", "  - override /hydra/launcher: joblib\n  - over", 1), "hydra/launcher"),
        (SWEEP + "hydra: {sweeper: {params: {training.seed: '1,2'}}}\n", "hydra.sweeper"),
        (SWEEP + "hydra:\n  run: {dir: logs}\n", "hydra.run"),
        (SWEEP.replace("num_steps: 7", "num_steps: ${x}"), "conf"),
        ("- a\n- b\n", "conf"),
        (b"\xff\xfe\xff", "conf"),
        (SWEEP.replace("which", "größer?").encode("latin-1"), "conf"),
    ],
    ids=str,
)
def test_a_wrong_file_is_one_message_with_its_name(write: Write, text: str | bytes, key: str) -> None:
    write("sweep/mine.yaml", text)
    with refused(ConfigError, key) as caught:
        load(["sweep=mine"])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("axes", "key"),
    [
        ("{training: {seed: [1, 2]}}", "sweep.axes.training.seed"),
        ("{training.seed: 3}", "sweep.axes.training.seed"),
        ("{training.seed: {from: 1}}", "sweep.axes.training.seed.from"),
    ],
)
def test_axes_of_another_form_are_told_of_theirs(write: Write, axes: str, key: str) -> None:
    write("sweep/mine.yaml", SWEEP.replace("{training.seed: [1, 2]}", axes))
    with refused(ConfigError, key):
        sweep_of()


def test_an_axis_that_is_added_by_its_dotted_name_is_told_of_braces(write: Write) -> None:
    write("sweep/mine.yaml", SWEEP)
    with refused(ConfigError, "sweep.axes.training.learning_rate") as caught:
        sweep_of("+sweep.axes.training.learning_rate=[1e-4,3e-4]")
    (remedy,) = shlex.split(str(caught.value).partition("Write ")[2].removesuffix("."))
    assert sweep_of(remedy).axes["training.learning_rate"].values == (1e-4, 3e-4)


@pytest.mark.parametrize("key", ["environment", "extra_sbatch"])
def test_a_list_where_names_and_values_are_wanted_is_named(write: Write, key: str) -> None:
    write("slurm/site.yaml", f"defaults: [default, _self_]\n{key}:\n  - A=1\n")
    with refused(ConfigError, f"slurm.{key}"):
        load(["slurm=site"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("setup: module load cuda", ("module load cuda",)),
        ("setup: |\n  module load cuda\n  . env.sh", ("module load cuda", ". env.sh")),
        ("srun_args: --mpi=pmix --cpu-bind=none", ("--mpi=pmix", "--cpu-bind=none")),
    ],
)
def test_a_text_where_a_list_is_wanted_is_printed_as_one(write: Write, text: str, value: tuple[str, ...]) -> None:
    write("slurm/site.yaml", f"defaults: [default, _self_]\n{text}\n")
    with refused(ConfigError, f"slurm.{text.partition(':')[0]}") as caught:
        load(["slurm=site"])
    (word,) = shlex.split(str(caught.value).partition("as a list: ")[2])
    slurm = load(["slurm=default", word]).slurm
    assert getattr(slurm, text.partition(":")[0]) == value


@pytest.mark.parametrize("path", ["sweep/mine.yml", "sweeps/mine.yaml", "mine.yaml", "sweep/mine.YAML"])
def test_a_file_that_lies_elsewhere_is_found_and_the_command_that_moves_it_is_said(write: Write, path: str) -> None:
    file = write(path, SWEEP)
    wanted = file.parents[path.count("/")] / "sweep" / "mine.yaml"
    with refused(ConfigError, "sweep"):
        load(["sweep=mine"])
    wanted.parent.mkdir(exist_ok=True)
    file.rename(wanted)
    assert sweep_of().name == "mine"


def test_a_site_that_forgets_its_defaults_is_told_of_them(write: Write) -> None:
    write("slurm/site.yaml", "partition: gpu\n")
    with refused(ConfigError, "slurm.account"):
        load(["slurm=site"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slurm=broken"], r"broken\.yaml, line 2': is not valid YAML"),
        (["modle=tiny"], r"modle = 'tiny': is not a key or group .* Did you mean model\?"),
        (["training.seed=[1"], r"training\.seed = '\[1': has brackets or quotes that do not match"),
    ],
)
def test_the_trainer_alone_says_it_in_one_message_too(
    words: list[str], message: str, write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write("slurm/broken.yaml", "partition: [a\n")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr("sys.argv", ["train_core", *words])
    with pytest.raises(SystemExit, match=str(EXIT_USAGE)):
        train_core.__main__.main()
    said = capsys.readouterr().err
    assert re.match(f"error: .*{message}", said)
    assert said.count("\n") == 1
