"""Values are taken as they are written: no text becomes a number, a truth or a time, and no number a text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.compose.load import compose_tree, load
from conf.compose.tree import part_at
from conf.credentials import revealed
from conf.errors import ConfigError
from conf.folders import VARIABLE
from conf.yaml_text import yaml_content
from tests.messages import refused

Site = Callable[[str], Any]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """`site("partition: 3090")`: Slurm's settings by a file that holds these lines."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "slurm").mkdir()

    def slurm(text: str) -> Any:
        (tmp_path / "slurm" / "site.yaml").write_text(f"defaults: [default, _self_]\n{text}\n")
        return load(["slurm=site"]).slurm

    return slurm


LIMITS = {
    "720": 720,
    "12:00:00": 720,
    "1-12": 2160,
    "1-12:00:00": 2160,
    "1-12:30": 2190,
    "0-00:45:00": 45,
    "30:00": 30,
    "30:30": 31,
    "00:00:20": 1,
    "7-00:00:00": 10080,
    "100:00:00": 6000,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("written", "minutes"), LIMITS.items())
def test_a_limit_is_what_sbatch_would_take_it_for(site: Site, written: str, minutes: int) -> None:
    assert site(f"time_limit_minutes: {written}").time_limit_minutes == minutes
    groups = (f"controller.time_limit_minutes={written}", f"launcher.time_limit_minutes='{written}'")
    stated = load(
        [f"slurm.time_limit_minutes={written}", "sweep=175b", f"sweep.proxy.time_limit_minutes={written}", *groups]
    )
    assert stated.sweep is not None
    limits = (stated.slurm, stated.controller, stated.launcher, stated.sweep.proxy)
    assert [limit and limit.time_limit_minutes for limit in limits] == [minutes] * 4


@pytest.mark.parametrize("written", ["720", "30:00", "1-12"])
def test_a_limit_in_quotes_is_the_same(site: Site, written: str) -> None:
    for spelled in (f'"{written}"', f"'{written}'  # of a trial"):
        assert site(f"time_limit_minutes: {spelled}").time_limit_minutes == LIMITS[written]
    assert load([f"slurm.time_limit_minutes='{written}'"]).slurm.time_limit_minutes == LIMITS[written]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "written", ["UNLIMITED", "2h", "90min", "infinite", "12:00:00:00", "1-", "", "0", "0:00", "-5"]
)
def test_what_is_no_limit_is_refused(site: Site, written: str) -> None:
    with refused(ConfigError, "slurm.time_limit_minutes"):
        site(f"time_limit_minutes: {written or chr(39) * 2}")


TEXTS = ["3090", "0123", "12.10", "1e5", "1_000", "0x1F", "1.0", "true", "no", "12:00", "2024-01-01", "+5", ".5", "a=b"]


KEYS_OF_TEXTS = ("partition", "account", "qos", "gpu_type", "constraint")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("written", TEXTS)
def test_digits_are_a_text_where_a_key_takes_texts(site: Site, written: str) -> None:
    in_a_file = site("\n".join(f"{key}: {written}" for key in KEYS_OF_TEXTS))
    stated = load([f"slurm.{key}={written}" for key in KEYS_OF_TEXTS]).slurm
    for key in KEYS_OF_TEXTS:
        assert (getattr(in_a_file, key), getattr(stated, key)) == (written, written)


def test_a_variable_is_what_is_written(site: Site) -> None:
    variables = {f"X{at}": written for at, written in enumerate(TEXTS)}
    lines = ", ".join(f"{name}: {written}" for name, written in variables.items())
    assert site(f"environment: {{{lines}}}").environment == variables
    for key in ("slurm", "trainer"):
        tree = compose_tree([f"{key}.environment.{name}={written}" for name, written in variables.items()])
        told = {name: revealed(str(value), {}, "memory") for name, value in tree[key]["environment"].items()}
        assert variables.items() <= told.items()
    components = ", ".join(f"{name}: {{partition: {written}}}" for name, written in variables.items())
    of = site(f"components: {{{components}}}").components
    assert {name: component.partition for name, component in of.items()} == variables


OPTIONS = ("comment", "wckey", "mcs-label", "profile", "network", "licenses", "bb")


def test_an_option_of_sbatch_keeps_its_kind(site: Site) -> None:
    values = {"0": 0, "true": True, "4G": "4G", "08": "08", "1.5": "1.5", "12:00:00": "12:00:00", "no": "no"}
    options = dict(zip(OPTIONS, values.values(), strict=True))
    lines = ", ".join(f"{option}: {written}" for option, written in zip(OPTIONS, values, strict=True))
    assert site(f"extra_sbatch: {{{lines}}}").extra_sbatch == options
    stated = [f"slurm.extra_sbatch.{option}={written}" for option, written in zip(OPTIONS, values, strict=True)]
    assert load(stated).slurm.extra_sbatch == options


def test_null_and_an_empty_value_stay_none(site: Site) -> None:
    assert site("partition: null\naccount:\nqos: ~").partition is None
    assert load(["slurm.partition=null"]).slurm.partition is None
    assert load(["slurm.partition='null'"]).slurm.partition == "null"


@pytest.mark.parametrize("written", ["[a100|h100]", "[rack1|rack2]*2", "a100&nvlink", "(a|b)&c", "gpu*2"])
def test_a_constraint_is_slurms_own_expression(site: Site, written: str) -> None:
    assert load([f"slurm.constraint={written}"]).slurm.constraint == written
    assert site(f'constraint: "{written}"').constraint == written


@pytest.mark.parametrize(
    ("override", "taken"),
    [
        ("slurm.extra_sbatch.mail-type=END,FAIL", "END,FAIL"),
        ("slurm.account=[a,b]", "a,b"),
        ("slurm.partition=a,b", "a,b"),
        ("slurm.constraint=[a,b]", "a,b"),
    ],
)
def test_the_remedy_for_a_list_where_a_text_is_wanted_can_be_copied(override: str, taken: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([override])
    assert "a list" not in str(caught.value)
    (copied,) = re.findall(r"(\"slurm[^\"]*\")", str(caught.value))
    (word,) = shlex.split(copied)
    assert part_at(compose_tree([word]), override.partition("=")[0]) == taken
    load([word])


def test_a_list_in_a_file_where_a_text_is_wanted_has_a_remedy(site: Site) -> None:
    with refused(ConfigError, "slurm.account"):
        site("account: [a, b]")
    assert site("partition: [3090, 0123]").partition == "3090,0123"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("1e-3", 1e-3),
        ("1.", 1.0),
        (".5e3", 500.0),
        ("-.inf", float("-inf")),
        ("0o17", 15),
        ("0x1f", 31),
        ("017", "017"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("12:30.5", "12:30.5"),
        ("0b11", "0b11"),
        ("2024-01-01", "2024-01-01"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("TRUE", True),
        ("NULL", None),
        ("=", "="),
        ("1e", "1e"),
        ("+1", 1),
        ("1.2.3", "1.2.3"),
        ("0_e0", "0_e0"),
        ("020222070707", "020222070707"),
        ("'5'", "5"),
    ],
)
def test_a_plain_value_is_read_by_the_core_schema(line: str, value: object) -> None:
    assert yaml_content(f"a: {line}", "file")["a"] == value


def test_numbers_and_truths_are_taken_where_a_key_takes_no_text(site: Site) -> None:
    assert site("preflight: yes\nmax_resubmits: 1_000\narray_parallelism: 0x10").preflight is True
    assert site("max_resubmits: 1_000").max_resubmits == 1000
    assert load(["budget.dollars=1_000"]).budget.dollars == 1000
    with refused(ConfigError, "slurm.max_resubmits"):
        site("max_resubmits: 010")


def test_words_of_a_command_are_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "trainer").mkdir()
    text = "defaults: [command, _self_]\ncommand: [python, t.py, 1e-3, 0123, no, 12:00, 1.10, true, 8]\n"
    (tmp_path / "trainer" / "mine.yaml").write_text(text)
    words = ("1e-3", "0123", "no", "12:00", "1.10", "true", "8")
    assert load(["trainer=mine"]).trainer.command[2:] == words


def test_points_name_keys_of_texts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "sweep").mkdir()
    text = """\
sweep:
  name: mine
  question: which
  baseline: {trainer.environment.V: 1.10, training.learning_rate: 1e-4}
  axes: {trainer.environment.V: [1.20, 08, no], training.seed: {values: [1, 2]}}
  zip: [{trainer.environment.W: [1, 2], training.num_steps: [10, 20]}]
  points: [{trainer.environment.V: 12:00:00}]
  max_trials: 4
  published: []
  proxy: null
"""
    (tmp_path / "sweep" / "mine.yaml").write_text(text)
    spec = load(["sweep=mine"]).sweep
    assert spec is not None
    assert spec.baseline == {"trainer.environment.V": "1.10", "training.learning_rate": 1e-4}
    assert spec.axes["trainer.environment.V"].values == ("1.20", "08", "no")
    assert spec.axes["training.seed"].values == (1, 2)
    assert spec.zip[0] == {"trainer.environment.W": ("1", "2"), "training.num_steps": (10, 20)}
    assert spec.points == ({"trainer.environment.V": "12:00:00"},)


@pytest.mark.parametrize("name", ["3090", "1e5", "on", "0123"])
def test_a_cluster_and_its_slurm_may_be_called_by_a_number(name: str, site: Site, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / f"{name}.yaml").write_text(f"defaults: [selene, _self_]\nname: {name}\ngpu_names: []\n")
    (tmp_path / "slurm" / f"{name}.yaml").write_text(f"defaults: [default, _self_]\npartition: {name}\n")
    settings = load([f"cluster={name}", f"slurm={name}"])
    assert (settings.cluster.name, settings.slurm.partition) == (name, name)
