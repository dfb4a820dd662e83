"""What is wrong with an override is said by its cause, and the printed remedy works as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from conf.compose.load import compose_tree, load
from conf.compose.tree import part_at
from conf.errors import ConfigError
from conf.folders import VARIABLE
from tests.messages import refused


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("hydra/launcher=submitit_slurm", "hydra/launcher"),
        ("+hydra/launcher=joblib", "hydra/launcher"),
        ("hydra.launcher.partition=gpu", "hydra.launcher.partition"),
        ("hydra/sweeper=optuna", "hydra/sweeper"),
        ("hydra.sweeper.n_trials=9", "hydra.sweeper.n_trials"),
        ("hydra.sweep.dir=x", "hydra.sweep.dir"),
        ("hydra.run.dir=${now:%Y}", "hydra.run.dir"),
        ("hydra.job.chdir=true", "hydra.job.chdir"),
    ],
)
def test_a_setting_of_hydras_own_has_its_remedy(override: str, key: str) -> None:
    with refused(ConfigError, key) as caught:
        load([override])
    assert "Known: ." not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "problem", "value"),
    [
        ("sweep.axes={training.seed: [1, 2", "sweep.axes", {"training.seed": [1, 2]}),
        ("sweep.axes={training.seed: [1,2]]", "sweep.axes", {"training.seed": [1, 2]}),
        ("sweep.axes={training.seed: [1,2}", "sweep.axes", {"training.seed": [1, 2]}),
        ("sweep.points=[{training.seed: 1}", "sweep.points", [{"training.seed": 1}]),
        ("slurm.account='abc", "slurm.account", "abc"),
        ("slurm.account=\"it's", "slurm.account", "it's"),
        ("slurm.setup=[module load cuda, ls", "slurm.setup", ["module load cuda", "ls"]),
        ("sweep.axes={data.path: [größe, b]}", "sweep.axes", {"data.path": ["größe", "b"]}),
        ("slurm.setup=[größe,ls]", "slurm.setup", ["größe", "ls"]),
    ],
)
def test_an_override_that_cannot_be_read_is_printed_as_it_can(override: str, problem: str, value: object) -> None:
    with refused(ConfigError, problem) as caught:
        load(["sweep=175b", override])
    (_, copied) = re.split(r"Write ", str(caught.value))
    word = shlex.split(re.sub(r"(, if that is meant)?\.$", "", copied))[0]
    key = override.partition("=")[0]
    assert part_at(compose_tree(["sweep=175b", word]), key) == value


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("training.seed=ü", "training.seed"),
        ("training.learning_rate=1e-4,", "training.learning_rate"),
        ("slurm.preflight=é", "slurm.preflight"),
        ("model.name=ünder", "model.name"),
    ],
)
def test_a_value_of_another_kind_is_not_told_of_quotes(override: str, key: str) -> None:
    with refused(ConfigError, key):
        load([override])


def test_a_file_may_have_letters_of_any_alphabet_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "größe.yaml").write_text("defaults: [default, _self_]\npartition: größe\n", encoding="utf-8")
    assert load(["slurm=größe"]).slurm.partition == "größe"
    assert load(["slurm.partition=größe"]).slurm.partition == "größe"
    with refused(ConfigError, "slurm"):
        load(["slurm=grösse"])
