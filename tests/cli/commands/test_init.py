"""`trisweep init` makes a folder that works as it is, and never overwrites what is there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from cli.commands.init import machine as described
from conf.compose.load import load_cluster
from conf.folders import further_folders
from launcher.slurm.cluster import NodeKind
from tests.cli.conftest import Command
from tests.messages import said


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, trisweep: Command) -> Path:
    """A folder that was made where no Slurm is; its name has to be quoted for a shell."""
    place = tmp_path_factory.mktemp("init")
    done = trisweep("init", "my folder", cwd=place)
    assert done.returncode == 0, done.stderr
    (place / "said").write_text(done.stdout)
    return place / "my folder"


@pytest.mark.slow
def test_every_command_that_it_names_works(home: Path, trisweep: Command) -> None:
    said = (home.parent / "said").read_text()
    enter, *commands = (shlex.split(line) for line in re.findall(r"^  (.*)$", said, re.MULTILINE))
    assert enter == ["cd", "my folder"]
    assert [command[1] for command in commands] == ["show", "plan", "plan", "sweep"]
    for program, *arguments in commands:
        assert program == "trisweep"
        done = trisweep(*arguments, cwd=home)
        assert done.returncode == 0, (arguments, done.stderr)
        assert "my-cluster" in done.stdout


def test_it_says_that_numbers_are_an_example_where_no_slurm_answers(home: Path) -> None:
    assert "No Slurm answered, so all numbers of the cluster are an example" in (home.parent / "said").read_text()
    text = (home / "config" / "cluster" / "my-cluster.yaml").read_text()
    assert "num_nodes: 4 # that a job may take; an example" in text


def test_its_files_are_listed_as_yours_from_a_folder_below_too(home: Path, trisweep: Command) -> None:
    (home / "below").mkdir(exist_ok=True)
    document = json.loads(trisweep("list", "--json", cwd=home / "below").stdout)
    own = {f"{group}/{row['name']}" for group, rows in document["groups"].items() for row in rows if row["is_own"]}
    assert own == {"cluster/my-cluster", "slurm/my-cluster", "model/my-model", "sweep/my-sweep"}
    assert all(row["says"] for rows in document["groups"].values() for row in rows)


def test_what_is_there_is_kept(home: Path, trisweep: Command) -> None:
    (home / "config" / "model" / "my-model.yaml").unlink()
    changed = home / "config" / "slurm" / "my-cluster.yaml"
    changed.write_text("partition: mine\n")
    document = json.loads(trisweep("init", "--json", cwd=home).stdout)
    assert document["written"] == [str(home / "config" / "model" / "my-model.yaml")]
    assert str(changed) in document["kept"]
    assert changed.read_text() == "partition: mine\n"


def test_slurm_is_asked_how_it_calls_the_cluster_only_where_no_name_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described, "node_kinds", lambda: [NodeKind("batch", True, True, None, 2, 64, 0, None)])
    monkeypatch.setattr(described, "this_cluster", lambda: pytest.fail("Slurm was asked"))
    assert described.machine("mine", None).name == "mine"


@pytest.mark.parametrize(
    ("slurms", "name"),
    [
        ("null", "my-null"),
        ("_x_", "x"),
        ("a b", "a-b"),
        ("frontier", "my-frontier"),
        ("", "my-cluster"),
        (None, "my-cluster"),
    ],
)
def test_slurm_s_name_of_the_cluster_becomes_one_that_a_file_can_have(slurms: str | None, name: str) -> None:
    assert described._free_name(slurms) == name


def test_a_second_init_keeps_the_cluster_that_slurm_names(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "hpc.yaml").touch()
    with further_folders([tmp_path]):
        assert described._free_name("hpc") == "hpc"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (("--like", "dgx-h100", "--nodes", "4"), (4, 8, "H100-80GB-SXM", 32)),
        (("--like", "perlmutter"), (256, 4, "A100-40GB-SXM", 1024)),
        (("--nodes", "16"), (16, 8, "A100-80GB-SXM", 128)),
    ],
)
def test_a_cluster_may_be_like_another(
    chosen: tuple[str, ...], expected: tuple[object, ...], tmp_path: Path, trisweep: Command
) -> None:
    done = trisweep("init", "--name", "mine", *chosen, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with further_folders([tmp_path / "config"]):
        found = load_cluster("mine")
    assert (found.num_nodes, found.devices_per_node, found.device.name, found.links[-1].num_devices) == expected
    text = (tmp_path / "config" / "cluster" / "mine.yaml").read_text()
    assert ("by --nodes" in text) == ("--nodes" in chosen)
    assert ("as cluster" in text) == ("--like" in chosen)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("--like", "dgx-h10"), "--like"),
        (("--name", "../x"), "--name"),
        (("--name", "null"), "--name"),
        (("--partition", "gpu"), "--partition"),
        (("file",), ""),
        (("file/below",), ""),
    ],
)
def test_what_cannot_be_done_is_one_message(
    arguments: tuple[str, ...], key: str, tmp_path: Path, trisweep: Command
) -> None:
    (tmp_path / "file").touch()
    done = trisweep("init", *arguments, cwd=tmp_path)
    assert done.stdout == ""
    said(done, key)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
