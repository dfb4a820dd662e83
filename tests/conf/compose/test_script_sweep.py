"""A sweep without a file: what its words mean, and what is said of words that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose.load import compose
from conf.compose.script_sweep import objective_overrides, save_script_sweep, script_sweep, values_of
from conf.compose.settings import Settings
from conf.errors import ConfigError
from conf.folders import further_folders
from conf.overrides import Overrides
from tests.messages import refused

COMMAND = "python fit.py --lr {lr} --batch {batch}"


def settings_of(command: str, *words: str, trials: int | None = None) -> Settings:
    sought = objective_overrides(["loss"], maximize=False, is_script=True)
    return compose(script_sweep(command, words).overrides(sought, trials)).settings


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4,8,16", [4, 8, 16]),
        ("1e-3, 0.1", [1e-3, 0.1]),
        ("true,false", [True, False]),
        ("adam,sgd", ["adam", "sgd"]),
        ("'a,b',c", ["a,b", "c"]),
        ("../data,./more", ["../data", "./more"]),
        ("12:00:00", ["12:00:00"]),
        ("007", ["007"]),
        ("1e-4..1e-1:log", {"low": 1e-4, "high": 0.1, "log": True}),
        ("8..64:step=8", {"low": 8, "high": 64, "step": 8}),
        ("0..1:num=5", {"low": 0, "high": 1, "num": 5}),
        ("-1.5..-.5", {"low": -1.5, "high": -0.5}),
    ],
)
def test_words_give_lists_and_ranges(text: str, values: object) -> None:
    assert values_of("x", text) == values


@pytest.mark.parametrize(
    "text",
    [
        "1e-1..1e-4",
        "0..1:log",
        "..3",
        "1e-4..",
        "1..x",
        "1..5:sqrt",
        "1..5:step=0",
        "1..5:num=x",
        "[1,2",
        "",
    ],
)
def test_bad_values_name_their_word_and_what_to_write(text: str) -> None:
    with refused(ConfigError, "lr"):
        values_of("lr", text)


def test_a_command_and_values_are_a_sweep_of_a_script() -> None:
    settings = settings_of(
        "python fit.py --lr {lr} {--amp} --seed {seed} --epochs {epochs} --opt={opt}",
        *("lr=1e-4..1e-1:log", "amp=true,false", "seed=1,2", "epochs=10", "opt=adam,'a b'", "minutes=20"),
        trials=24,
    )
    sweep, trainer = settings.sweep, settings.trainer
    assert sweep is not None
    assert (sweep.name, sweep.max_trials, settings.search.kind, settings.search.objective) == (
        *("fit", 24, "bayes"),
        ("loss",),
    )
    assert sweep.varied_keys == {
        *("trainer.params.lr", "trainer.params.amp", "training.seed", "trainer.params.opt"),
    }
    assert trainer.params == {"epochs": 10}
    assert trainer.command[-5:] == ("--seed", "{training.seed}", "--epochs", "{epochs}", "--opt={opt}")
    assert trainer.flags == {"amp": "{amp}"}
    assert settings.slurm.time_limit_minutes == 20
    assert sweep.question == "Which amp, lr, opt and seed are best?"


@pytest.mark.parametrize(
    ("words", "trials", "kind"),
    [
        (["lr=1,2", "batch=4,8"], None, "grid"),
        (["lr=1,2", "batch=4,8"], 4, "grid"),
        (["lr=1,2", "batch=4,8"], 3, "bayes"),
        (["lr=1..2:num=3", "batch=4,8"], None, "grid"),
        (["lr=0.1..0.2", "batch=4,8"], 3, "bayes"),
        (["lr=0.1..0.2", "batch=4,8", "search=random"], 3, "random"),
    ],
)
def test_all_points_are_tried_where_that_is_possible_else_a_search_chooses(
    words: list[str], trials: int | None, kind: str
) -> None:
    assert settings_of(COMMAND, *words, trials=trials).search.kind == kind


@pytest.mark.parametrize(
    ("command", "words", "key"),
    [
        (COMMAND, ["lr=1,2"], "--command"),
        (COMMAND, ["lr=1,2", "batch=4", "wd=0.1"], "wd"),
        (COMMAND, ["lr=1,2", "bach=4,8"], "bach"),
        (COMMAND, ["lr=1,2", "batch=4", "more"], "sweep"),
        (COMMAND, ["lr=0.1..0.2", "batch=4"], "lr"),
        ("python fit.py '{lr}", ["lr=1"], "--command"),
        ("", [], "--command"),
        ("python {cluster}", ["cluster=local"], "--command"),
        ("python {a b}", [], "--command"),
        ("python {1}", [], "--command"),
        ("python smoke.py", [], "sweep.name"),
        ("python x.py {lr}", ["lr=1,2", "gpus=none"], "gpus"),
        ("python x.py {lr}", ["lr=1,2", "nodes=2"], "gpus"),
        ("python x.py {lr}", ["lr=1,2", "gpus=9", "cluster=dgx-h100"], "gpus"),
        ("python x.py {lr}", ["lr=1,2", "gpus=4", "nodes=2", "cluster=dgx-h100"], "gpus"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_starts(command: str, words: list[str], key: str) -> None:
    with refused(ConfigError, key):
        settings_of(command, *words)


def test_gpus_and_nodes_are_those_of_one_trial() -> None:
    words = ("lr=1,2", "nodes=2", "cluster=dgx-h100")
    settings = settings_of("python x.py {lr}", *words)
    assert (settings.parallel.world_size, settings.batch.global_batch_size) == (16, 16)
    assert settings_of("python x.py {lr}", "lr=1,2", "gpus=4").parallel.world_size == 4


def test_several_numbers_of_gpus_are_an_axis_and_the_command_may_name_them() -> None:
    settings = settings_of("torchrun --nproc_per_node {gpus} x.py {lr}", "lr=1,2", "gpus=1,2,4")
    assert settings.sweep is not None
    axes = {key: axis.grid_values for key, axis in settings.sweep.axes.items()}
    assert axes["parallel.world_size"] == (1, 2, 4)
    assert axes["batch.global_batch_size"] == ("=parallel.world_size",)
    assert settings.trainer.command[2] == "{devices_per_node}"
    with pytest.raises(ConfigError, match="gpus = '0'"):
        settings_of("python x.py {lr}", "lr=1,2", "gpus=1,0")


def test_any_name_that_is_printed_is_an_objective() -> None:
    def sought(*names: str, maximize: bool = False, is_script: bool = True) -> str:
        return objective_overrides(names, maximize=maximize, is_script=is_script)[0].partition("=")[2]

    assert sought("loss") == "['loss']"
    assert sought("val_acc", maximize=True) == "['max:train.val_acc']"
    assert sought("throughput") == "['train.throughput']"  # the script's own
    assert sought("throughput", is_script=False) == "['throughput']"
    assert sought("evaluate.rmse", is_script=False) == "['evaluate.rmse']"
    assert sought("loss", "max:acc") == "['loss','max:train.acc']"
    with refused(ConfigError, "--objective"):
        sought("9 lives")


def test_a_saved_file_is_the_same_sweep_and_is_never_overwritten(tmp_path: Path) -> None:
    words = ("lr=1e-4..1e-1:log", "batch=4,8,16", "note='x: y','{z}'", "search.num_seeds=2", "minutes=9")
    sought = objective_overrides(["acc"], maximize=True, is_script=True)
    overrides = script_sweep(COMMAND + " --note {note} --seed {seed}", words).overrides(sought, 24)
    path = tmp_path / "conf" / "sweep" / "fit.yaml"
    text, _ = save_script_sweep(path, overrides, dry_run=True)
    assert not path.parent.exists()
    assert save_script_sweep(path, overrides)[1].startswith("trisweep sweep fit --config-dir ")
    assert path.read_text() == text
    with further_folders([tmp_path / "conf"]):
        assert compose(Overrides.choosing("sweep", "fit")).settings == compose(overrides).settings
    with refused(ConfigError, "--save"):
        save_script_sweep(path, overrides)
    with refused(ConfigError, "--save"):
        save_script_sweep(tmp_path / "x.yaml", overrides)
