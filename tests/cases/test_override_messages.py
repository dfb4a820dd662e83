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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("hydra/launcher=submitit_slurm", r"hydra/launcher = 'submitit_slurm': is a setting of Hydra's.* cluster=NAME"),
        ("+hydra/launcher=joblib", r"Jobs are submitted without it"),
        ("hydra.launcher.partition=gpu", r"slurm\.partition=NAME"),
        ("hydra/sweeper=optuna", r"search=bayes"),
        ("hydra.sweeper.n_trials=9", r"search=bayes"),
        ("hydra.sweep.dir=x", r"output_dir=PATH"),
        ("hydra.run.dir=${now:%Y}", r"output_dir=PATH"),
        ("hydra.job.chdir=true", r"Leave it out"),
    ],
)
def test_a_setting_of_hydras_own_has_its_remedy(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load([override])
    assert "Known: ." not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "problem", "value"),
    [
        ("sweep.axes={training.seed: [1, 2", "do not match", {"training.seed": [1, 2]}),
        ("sweep.axes={training.seed: [1,2]]", "do not match", {"training.seed": [1, 2]}),
        ("sweep.axes={training.seed: [1,2}", "do not match", {"training.seed": [1, 2]}),
        ("sweep.points=[{training.seed: 1}", "do not match", [{"training.seed": 1}]),
        ("slurm.account='abc", "do not match", "abc"),
        ("slurm.account=\"it's", "do not match", "it's"),
        ("slurm.setup=[module load cuda, ls", "do not match", ["module load cuda", "ls"]),
        ("sweep.axes={data.path: [größe, b]}", "letters other than a to z", {"data.path": ["größe", "b"]}),
        ("slurm.setup=[größe,ls]", "letters other than a to z", ["größe", "ls"]),
    ],
)
def test_an_override_that_cannot_be_read_is_printed_as_it_can(override: str, problem: str, value: object) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        load(["sweep=175b", override])
    (_, copied) = re.split(r"Write ", str(caught.value))
    word = shlex.split(re.sub(r"(, if that is meant)?\.$", "", copied))[0]
    key = override.partition("=")[0]
    assert part_at(compose_tree(["sweep=175b", word]), key) == value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.seed=ü", r"training\.seed = 'ü': must be a whole number"),
        ("training.learning_rate=1e-4,", r"must be a number"),
        ("slurm.preflight=é", r"must be true or false"),
        ("model.name=ünder", r"must be a name: letters \(a to z\), digits"),
    ],
)
def test_a_value_of_another_kind_is_not_told_of_quotes(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load([override])


def test_a_file_may_have_letters_of_any_alphabet_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "größe.yaml").write_text("defaults: [default, _self_]\npartition: größe\n", encoding="utf-8")
    assert load(["slurm=größe"]).slurm.partition == "größe"
    assert load(["slurm.partition=größe"]).slurm.partition == "größe"
    with pytest.raises(ConfigError, match=r"slurm = 'grösse': is not an option of this group\."):
        load(["slurm=grösse"])
