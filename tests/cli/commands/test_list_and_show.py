"""What can be chosen, where it comes from, and what a choice comes to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from conf.folders import conf_dir, first_sentence, groups, options
from tests.cli.conftest import Command
from tests.messages import said


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a cluster of its own, one in place of the package's, and a misspelt group."""
    (tmp_path / "own" / "cluster").mkdir(parents=True)
    (tmp_path / "own" / "clusters").mkdir()
    selene = (conf_dir() / "cluster" / "selene.yaml").read_text()
    (tmp_path / "own" / "cluster" / "mine.yaml").write_text(
        "# Ours, e.g. here. More.\n" + selene.replace(": selene", ": mine")
    )
    shutil.copy(conf_dir() / "cluster" / "selene.yaml", tmp_path / "own" / "cluster")
    (tmp_path / "own" / "clusters" / "lost.yaml").touch()
    return tmp_path / "own"


def test_groups_and_options_are_listed_with_their_names_whole(tmp_path: Path, trisweep: Command) -> None:
    said = trisweep("list", cwd=tmp_path, COLUMNS="80").stdout
    words = said.replace(",", " ").split()
    assert all(name in words for group in groups() for name in (group, *options(group)))


def test_a_group_says_of_each_option_whose_it_is_and_what(own: Path, trisweep: Command) -> None:
    said = trisweep("list", "cluster", "--config-dir", "own", cwd=own.parent, COLUMNS="80").stdout
    rows = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert rows["mine"].split() == ["mine", "yours", "Ours,", "e.g.", "here."]
    assert rows["frontier"].split()[1] == "package"
    assert rows["selene"].split()[1] == "yours"
    assert "(in place of the package's)" in " ".join(said.split())
    assert "Not read: own/clusters (1 file), because clusters is not a group." in said


def test_every_file_of_the_package_says_what_it_is() -> None:
    silent = [path for group in groups() for path in (conf_dir() / group).glob("*.yaml") if not first_sentence(path)]
    assert silent == []


def test_a_choice_is_shown_with_the_file_of_every_part(own: Path, trisweep: Command) -> None:
    chosen = ("cluster=mine", "cluster.num_nodes=2", "--config-dir", "own")
    said = trisweep("show", *chosen, cwd=own.parent).stdout
    assert f"# cluster=mine: {own}/cluster/mine.yaml\n" in said
    assert "# device=a100-80gb: conf/device/a100-80gb.yaml\n" in said
    assert "# cluster.num_nodes=2 from the command line\n" in said
    values = yaml.safe_load(said)
    assert list(values) == ["cluster"]
    assert values["cluster"]["num_nodes"] == 2
    shown = json.loads(trisweep("show", *chosen, "--json", cwd=own.parent).stdout)
    assert shown["groups"]["cluster"]["sources"]["cluster=mine"] == f"{own}/cluster/mine.yaml"


def test_all_groups_are_shown_where_none_is_named(tmp_path: Path, trisweep: Command) -> None:
    values = yaml.safe_load(trisweep("show", cwd=tmp_path).stdout)
    assert {"model", "cluster", "slurm", "output_dir"} <= set(values)


@pytest.mark.parametrize(
    ("chosen", "group", "key"),
    [
        ("trainer=command", "log", "trainer.command"),
        ("tracking=server", "uri", "tracking.uri"),
        ("slurm.container=apptainer", "container", "slurm.container_image"),
    ],
)
def test_what_is_not_complete_is_shown_with_what_it_lacks(
    chosen: str, group: str, key: str, tmp_path: Path, trisweep: Command
) -> None:
    done = trisweep("show", chosen, cwd=tmp_path)
    assert group in next(iter(yaml.safe_load(done.stdout).values()))
    said(done, key, code=0)


@pytest.mark.parametrize("stated", ["training.seed=x", "slurm.time_limit_minutes=null"])
def test_what_is_stated_wrongly_is_not_shown(stated: str, tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("show", stated, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_efficiencies_are_chosen_as_devices_are(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("show", "cluster=frontier", "efficiency=a100", cwd=tmp_path)
    assert "# efficiency=a100: conf/efficiency/a100.yaml" in done.stdout
    refused = trisweep("show", "cluster=local", "efficiency=a100", cwd=tmp_path)
    said(refused, "efficiency")


def test_an_unknown_group_is_one_message(tmp_path: Path, trisweep: Command) -> None:
    done = trisweep("list", "clutser", cwd=tmp_path)
    assert done.stdout == ""
    said(done, "clutser")
